// Package mutant brings every trap of docs/proof.md back, one at a time, to see
// that something notices: the seventh rung of the proof.
//
// A [Mutant] is a small edit of the product's source, such as an engineer could
// make by mistake, and the tests that are expected to fail with it, the cheapest
// first. It is applied at build, as an overlay of `go test`: no file of the module
// is ever changed, and no program of the product contains any of it. What each
// trap is about is in [Traps]; package main in run seeds all of them and prints
// which rung caught which (make prove-mutants).
package mutant

import (
	"fmt"
	"go/format"
	"os"
	"path/filepath"
	"strings"
)

// Edit replaces a piece of a file, which is in it exactly once, by another.
type Edit struct{ Old, New string }

// Mutant is one seeded bug.
type Mutant struct {
	Name    string   // the trap's number, and a word where it has several: "T27", "T27 stale"
	Trap    int      // of Traps
	File    string   // below the module's root, with slashes
	Edits   []Edit   // of that file
	Mistake string   // what is wrong now, and how it looked like a good idea
	Noticed []Notice // which tests fail, the cheapest first
}

// Rung is a part of the proof, by its number in docs/proof.md. What comes before
// the first are the packages' own tests.
type Rung int

// The rungs that can catch a seeded bug.
const (
	Tests         Rung = iota // the packages' own, on real databases and processes
	Model                     // breadth-first over the decisions
	Interleavings             // every order of racing steps
	Simulation                // the whole system under virtual time
	CrashPoints               // a crash at every step
	Kills                     // real processes killed
	Histories                 // linearizability of what clients saw
)

// String is the rung's name in the table.
func (r Rung) String() string {
	names := [...]string{"tests", "model", "interleavings", "simulation", "crash points", "kills", "histories"}
	if int(r) < len(names) {
		return names[r]
	}
	return fmt.Sprintf("rung %d", int(r))
}

// Notice is where a seeded bug is expected to be noticed.
type Notice struct {
	Rung    Rung
	Package string // below the module's root
	// Tests are the names of those that fail; "TestOnPostgres/TestX" is TestX on
	// PostgreSQL, for a bug that only shows where rows are locked one by one. One
	// that fails is enough.
	Tests []string
}

// Pattern is what `go test -run` takes for the notice's tests.
func (n Notice) Pattern() string {
	patterns := make([]string, len(n.Tests))
	for i, name := range n.Tests {
		patterns[i] = "^" + strings.ReplaceAll(name, "/", "$/^") + "$"
	}
	return strings.Join(patterns, "|")
}

// Apply returns the mutant's file as it is with the bug. It fails where the
// source has moved on: an old text that is not there, or not once.
func (m Mutant) Apply(root string) ([]byte, error) {
	raw, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(m.File)))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", m.Name, err)
	}
	text := string(raw)
	for i, e := range m.Edits {
		if n := strings.Count(text, e.Old); n != 1 {
			return nil, fmt.Errorf("%s no longer applies: %s has the old text of edit %d %d times, not once:\n%s", m.Name, m.File, i+1, n, e.Old)
		}
		text = strings.Replace(text, e.Old, e.New, 1)
	}
	// What does not parse is no bug that could be shipped.
	if _, err := format.Source([]byte(text)); err != nil {
		return nil, fmt.Errorf("%s: %s does not parse with it: %w", m.Name, m.File, err)
	}
	return []byte(text), nil
}
