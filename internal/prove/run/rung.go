package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// rung is one of docs/proof.md's.
type rung struct {
	number   int
	name     string
	weight   int           // its share of a given time
	generous time.Duration // its time where none is given: more than it takes to its goal on two cores
	waits    bool          // more than it computes: it is climbed beside the others
	builds   bool          // the programs that it tests by itself: the race detector makes no difference to it
	packages []pkg
}

// pkg is a package with tests of a rung.
type pkg struct {
	path  string // ./simulation
	tests int
}

// tests is how many tests share the rung's time.
func (r rung) tests() (n int) {
	for _, p := range r.packages {
		n += p.tests
	}
	return n
}

// ladder is the rungs that this program climbs.
func ladder() []rung {
	return []rung{
		{number: 1, name: "models", weight: 3, generous: 30 * time.Minute},
		{number: 2, name: "interleavings", weight: 2, generous: 30 * time.Minute},
		{number: 3, name: "simulation", weight: 8, generous: 3 * time.Hour},
		{number: 4, name: "crash points", weight: 3, generous: time.Hour},
		{number: 5, name: "real kills", weight: 5, generous: 2 * time.Hour, waits: true},
		{number: 6, name: "histories", weight: 2, generous: time.Hour},
		{number: 7, name: "seeded bugs", weight: 3, generous: 2 * time.Hour, builds: true},
	}
}

// numberOf is the rung whose tests a directory has. The models are beside the
// decisions that they drive, wherever those are.
func numberOf(dir string) int {
	within := func(path string) bool { return dir == path || strings.HasPrefix(dir, path+"/") }
	switch {
	case within("internal/mutant"):
		return 7
	case within("simulation/interleaving"):
		return 2
	case within("simulation/crashpoint"):
		return 4
	case within("internal/kill"):
		return 5
	case within("simulation/history"):
		return 6
	case within("simulation/model"), within("simulation/explorer"):
		return 1
	case within("simulation"):
		return 3
	}
	return 1
}

// find sorts the module's tests named TestProve… into the rungs.
func find(root string) ([]rung, error) {
	rungs := ladder()
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if name := d.Name(); path != root && (strings.HasPrefix(name, ".") || name == "testdata" || name == "bin") {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(path, "_test.go") {
			return nil
		}
		tests, err := proves(path)
		if err != nil || tests == 0 {
			return err
		}
		rel, err := filepath.Rel(root, filepath.Dir(path))
		if err != nil {
			return err
		}
		dir := filepath.ToSlash(rel)
		for i := range rungs {
			if rungs[i].number == numberOf(dir) {
				rungs[i].add("./"+dir, tests)
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("find the rungs: %w", err)
	}
	return rungs, nil
}

func (r *rung) add(path string, tests int) {
	if n := len(r.packages); n > 0 && r.packages[n-1].path == path {
		r.packages[n-1].tests += tests
		return
	}
	r.packages = append(r.packages, pkg{path: path, tests: tests})
}

// proves counts the tests of a file that are a rung's.
func proves(path string) (int, error) {
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
	if err != nil {
		return 0, err
	}
	n := 0
	for _, decl := range file.Decls {
		if f, ok := decl.(*ast.FuncDecl); ok && f.Recv == nil && strings.HasPrefix(f.Name.Name, "TestProve") {
			n++
		}
	}
	return n, nil
}

// choose keeps the rungs of a list of numbers; "" is all of them.
func choose(rungs []rung, list string) ([]rung, error) {
	if list == "" {
		return rungs, nil
	}
	var chosen []rung
	for word := range strings.SplitSeq(list, ",") {
		n, err := strconv.Atoi(word)
		at := slices.IndexFunc(rungs, func(r rung) bool { return r.number == n })
		if err != nil || at < 0 {
			return nil, fmt.Errorf("there is no rung %q here: give some of 1 to 7", word)
		}
		chosen = append(chosen, rungs[at])
	}
	return chosen, nil
}

// shareOf is what the first of the rungs ahead gets of the time that is left:
// what others did not use is everyone's.
func shareOf(ahead []rung, left time.Duration) time.Duration {
	total := 0
	for _, r := range ahead {
		total += r.weight
	}
	return max(left*time.Duration(ahead[0].weight)/time.Duration(total), time.Second)
}

// besideShare is what a rung beside the others gets of all the time: it needs some
// of it to come to rest after its last blow.
func besideShare(r rung, budget time.Duration) time.Duration {
	if budget == 0 {
		return r.generous
	}
	return max(budget*3/4, time.Second)
}

func chosen(rungs []rung, which []int) (out []rung) {
	for _, i := range which {
		out = append(out, rungs[i])
	}
	return out
}
