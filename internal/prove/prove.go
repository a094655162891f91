// Package prove is what the rungs of the proof share: how long a rung may go on,
// how much of itself it runs inside `make test`, and the figures that it reports.
//
// A rung is a package with tests named TestProve…. `make test` runs a slice of
// each, once under the race detector and once without; `make prove` gives each a
// time and gathers what they report into one page (package main in run).
package prove

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"testing"
	"time"
)

// The environment that `make prove` sets for a rung.
const (
	// EnvBudget is how long the rung may go on, as time.ParseDuration reads it.
	// Not set: this is `make test`, which runs a slice.
	EnvBudget = "HOLDFAST_PROVE"
	// EnvFigures is the file that figures are appended to, a JSON line each.
	EnvFigures = "HOLDFAST_PROVE_FIGURES"
)

// Figure is one line of the summary: what a rung counted.
type Figure struct {
	Rung  int    `json:"rung"`           // of docs/proof.md, 1 to 7
	Name  string `json:"name"`           // what was counted, such as "distinct model states"
	Value int64  `json:"value"`          // how many
	Goal  int64  `json:"goal,omitempty"` // at least so many in a whole `make prove`; 0: no goal of its own
	// Violations counts what broke an invariant. One is enough to fail the proof.
	Violations int64  `json:"violations"`
	Note       string `json:"note,omitempty"` // one line more for the reader
}

// Budget is how long the calling rung may go on; whole is false inside `make
// test`, where the rung runs its slice instead and the duration is zero.
func Budget(t testing.TB) (d time.Duration, whole bool) {
	t.Helper()
	value := os.Getenv(EnvBudget)
	if value == "" {
		return 0, false
	}
	d, err := time.ParseDuration(value)
	if err != nil || d <= 0 {
		t.Fatalf("%s=%q: give a duration such as 10m", EnvBudget, value)
	}
	return d, true
}

// Slice is how many of something `make test` runs: full without the race
// detector, raced with it, since it makes everything several times slower.
func Slice(full, raced int) int {
	if raceDetector {
		return raced
	}
	return full
}

// Report adds a figure to the summary, and to the test's log.
func Report(t testing.TB, f Figure) {
	t.Helper()
	t.Logf("rung %d: %d %s, %d violations %s", f.Rung, f.Value, f.Name, f.Violations, f.Note)
	path := os.Getenv(EnvFigures)
	if path == "" {
		return
	}
	if err := appendLine(path, f); err != nil {
		t.Errorf("report %q: %v", f.Name, err)
	}
}

// Read reads the figures that were reported to a file, the oldest first; there is
// none where nothing was reported.
func Read(path string) ([]Figure, error) {
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the figures: %w", err)
	}
	var figures []Figure
	for line := range bytes.Lines(raw) {
		var f Figure
		if err := json.Unmarshal(line, &f); err != nil {
			return figures, fmt.Errorf("read the figures: %w", err)
		}
		figures = append(figures, f)
	}
	return figures, nil
}

func appendLine(path string, f Figure) (err error) {
	line, err := json.Marshal(f)
	if err != nil {
		return fmt.Errorf("encode the figure: %w", err)
	}
	file, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer func() {
		if closeErr := file.Close(); err == nil {
			err = closeErr
		}
	}()
	_, err = file.Write(append(line, '\n'))
	return err
}
