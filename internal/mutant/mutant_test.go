package mutant

import (
	"cmp"
	"context"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"hash/fnv"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/internal/prove"
)

func root(t *testing.T) string {
	t.Helper()
	dir, err := Root(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestEveryTrapIsSeededOrSaysWhyNot(t *testing.T) {
	seeded := map[int]int{}
	names := map[string]bool{}
	for _, m := range All() {
		seeded[m.Trap]++
		if names[m.Name] {
			t.Errorf("two bugs are named %s", m.Name)
		}
		names[m.Name] = true
		if word, _, _ := strings.Cut(m.Name, " "); word != "T"+strconv.Itoa(m.Trap) {
			t.Errorf("%s is a bug of trap %d", m.Name, m.Trap)
		}
		if m.Mistake == "" || len(m.Edits) == 0 || len(m.Noticed) == 0 {
			t.Errorf("%s lacks its mistake, its edits or who notices it", m.Name)
		}
		if !slices.IsSortedFunc(m.Noticed, func(a, b Notice) int { return cmp.Compare(a.Rung, b.Rung) }) {
			t.Errorf("%s: the cheapest rung comes first", m.Name)
		}
	}
	traps := Traps()
	for i, trap := range traps {
		if trap.Number != i+1 {
			t.Errorf("trap %d is number %d of the list", trap.Number, i+1)
		}
		if seeded[trap.Number] == 0 && trap.Later == "" {
			t.Errorf("T%d, %s: no bug is seeded, and nothing says why", trap.Number, trap.Text)
		}
		delete(seeded, trap.Number)
	}
	if len(traps) != 53 || len(seeded) != 0 {
		t.Errorf("%d traps, and bugs of others: %v", len(traps), seeded)
	}
}

// A test that is gone would be taken for one that noticed nothing.
func TestEveryTestThatIsToNoticeExists(t *testing.T) {
	dir := root(t)
	known := map[string]map[string]bool{}
	for _, m := range All() {
		for _, n := range m.Noticed {
			if known[n.Package] == nil {
				known[n.Package] = testsOf(t, filepath.Join(dir, filepath.FromSlash(n.Package)))
			}
			for _, name := range n.Tests {
				parts := strings.SplitN(name, "/", 2)
				if !known[n.Package][parts[0]] {
					t.Errorf("%s: %s has no %s", m.Name, n.Package, parts[0])
				}
				if parts[0] == "TestOnPostgres" && !known[n.Package][parts[len(parts)-1]] {
					t.Errorf("%s: %s has no %s", m.Name, n.Package, parts[1])
				}
			}
		}
	}
}

func testsOf(t *testing.T, dir string) map[string]bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	declared := regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	for _, path := range files {
		raw, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, found := range declared.FindAllSubmatch(raw, -1) {
			names[string(found[1])] = true
		}
	}
	return names
}

// The product's packages and build know nothing of seeded bugs: only this
// directory's program applies them.
func TestTheProductContainsNoneOfIt(t *testing.T) {
	dir := root(t)
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		rel = filepath.ToSlash(rel)
		if d.IsDir() {
			if rel == "internal/mutant" || rel == "bin" || strings.HasPrefix(d.Name(), ".") && rel != "." && rel != ".github" {
				return filepath.SkipDir
			}
			return nil
		}
		build := rel == "Makefile" || strings.HasPrefix(rel, "scripts/") || strings.HasPrefix(rel, ".github/")
		if !build && filepath.Ext(path) != ".go" {
			return nil
		}
		raw, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if build && strings.Contains(string(raw), "-overlay") {
			t.Errorf("%s builds with an overlay", rel)
		}
		if !build && imports(t, path, raw, "holdfast/internal/mutant") {
			t.Errorf("%s imports the seeded bugs", rel)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func imports(t *testing.T, path string, raw []byte, what string) bool {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), path, raw, parser.ImportsOnly)
	if err != nil {
		t.Error(err)
		return false
	}
	return slices.ContainsFunc(file.Imports, func(i *ast.ImportSpec) bool { return strings.Contains(i.Path.Value, what) })
}

func TestABugThatNoLongerAppliesIsAnError(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "f.go"), []byte("package f\n\nfunc one() {}\n\nfunc two() {}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		edits []Edit
		want  string // of the error; "" for none
	}{
		"once":            {[]Edit{{"one", "three"}}, ""},
		"after another":   {[]Edit{{"one", "three"}, {"three", "four"}}, ""},
		"gone":            {[]Edit{{"five", "six"}}, "no longer applies"},
		"twice":           {[]Edit{{"func", "func"}}, "no longer applies"},
		"it parses not":   {[]Edit{{"func one() {}", "func one() {"}}, "does not parse"},
		"the file is not": {nil, "no such file"},
	} {
		file := "f.go"
		if tc.edits == nil {
			file = "g.go"
		}
		out, err := Mutant{Name: name, File: file, Edits: tc.edits}.Apply(dir)
		if tc.want == "" && (err != nil || !strings.Contains(string(out), "func two")) {
			t.Errorf("%s: %q, %v", name, out, err)
		}
		if tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
			t.Errorf("%s: %v, want it to say %q", name, err, tc.want)
		}
	}
}

func TestARunThatTestedNothingIsNoCatch(t *testing.T) {
	for name, tc := range map[string]struct {
		output string
		passed bool
		test   string // that failed
		after  string
		fails  bool
	}{
		"passed":           {output: "ok  \tx\t0.1s\n", passed: true},
		"no such test":     {output: "ok  \tx\t0.1s [no tests to run]\n", passed: true, fails: true},
		"no build":         {output: "# x\nf.go:1:1: undefined\nFAIL\tx [build failed]\n", fails: true},
		"failed elsewhere": {output: "panic: init\nFAIL\tx\t0.1s\n", fails: true},
		"failed":           {output: "--- FAIL: TestA (0.1s)\n    f_test.go:1: wrong\nFAIL\n", test: "TestA"},
		"failed in part":   {output: "--- FAIL: TestA (0.1s)\n    --- FAIL: TestA/b (0.1s)\nFAIL\n", test: "TestA/b"},
		"hung":             {output: "panic: test timed out after 4m0s\n\trunning tests:\n\t\tTestA (4m0s)\n", test: "TestA (it hung)"},
		"with a seed":      {output: "--- FAIL: TestA (1s)\n    seed 17: two boots\n", test: "TestA", after: "seed 17"},
		"after so many":    {output: "--- FAIL: TestA (1s)\n    broke a rule after 23 schedules\n", test: "TestA", after: "23 schedules"},
		"as it counted":    {output: "--- FAIL: TestA (1s)\n    prove.go:70: rung 1: 23 distinct states, 1 violations \n", test: "TestA", after: "23 distinct states"},
	} {
		r, err := Result{Passed: tc.passed, Output: tc.output}.read(Notice{Package: "x"})
		if (err != nil) != tc.fails || !tc.fails && (r.Test != tc.test || r.After != tc.after) {
			t.Errorf("%s: %q after %q, %v", name, r.Test, r.After, err)
		}
	}
}

// sliceOf is how many bugs `make test` seeds.
const sliceOf = 3

// TestProve7_SeededBugsAreCaught seeds a few of them: which, follows the source
// that they are seeded into. All of them are make prove-mutants.
func TestProve7_SeededBugsAreCaught(t *testing.T) {
	if testing.Short() {
		t.Skip("builds packages anew")
	}
	dir := root(t)
	chosen := All()
	budget, whole := prove.Budget(t)
	until := time.Now().Add(budget)
	if !whole {
		chosen = chooseSlice(t, dir)
	}
	tree := Tree{Root: dir, Scratch: t.TempDir()}
	var caught, missed atomic.Int64
	room := make(chan struct{}, runtime.NumCPU())
	var all sync.WaitGroup
	for _, m := range chosen {
		room <- struct{}{}
		if whole && time.Now().After(until) {
			break // the figure is short of its goal
		}
		all.Go(func() {
			defer func() { <-room }()
			began := time.Now()
			by, err := catch(t.Context(), tree, m)
			switch {
			case err != nil:
				missed.Add(1)
				t.Errorf("%s: %v", m.Name, err)
			case by == "":
				missed.Add(1)
				t.Errorf("%s was not caught: %s", m.Name, m.Mistake)
			default:
				caught.Add(1)
				t.Logf("%s was caught by %s in %s", m.Name, by, time.Since(began).Round(100*time.Millisecond))
			}
		})
	}
	all.Wait()
	prove.Report(t, prove.Figure{Rung: 7, Name: "seeded bugs caught", Value: caught.Load(), Goal: int64(len(chosen)),
		Violations: missed.Load(), Note: traps(chosen)})
}

// traps says for how many traps there are bugs, and for which there are none.
func traps(chosen []Mutant) string {
	seeded := map[int]bool{}
	for _, m := range chosen {
		seeded[m.Trap] = true
	}
	text := fmt.Sprintf("of %d traps of %d", len(seeded), len(Traps()))
	for _, trap := range Traps() {
		if trap.Later != "" {
			text += fmt.Sprintf("; T%d %s", trap.Number, trap.Later)
		}
	}
	return text
}

// chooseSlice takes the first of those that are quick to build and need no server,
// in an order that a change of the source shuffles.
func chooseSlice(t *testing.T, dir string) []Mutant {
	t.Helper()
	order := map[string]uint64{}
	quick := slices.DeleteFunc(All(), func(m Mutant) bool {
		return m.Noticed[0].Rung != Tests || slices.Contains([]string{"store/postgres", "orchestrator"}, m.Noticed[0].Package) || strings.HasPrefix(m.Noticed[0].Tests[0], "TestOnPostgres/")
	})
	for _, m := range quick {
		raw, err := os.ReadFile(filepath.Join(dir, filepath.FromSlash(m.File)))
		if err != nil {
			t.Fatal(err)
		}
		h := fnv.New64a()
		_, _ = h.Write(append(raw, m.Name...)) // a hash never fails
		order[m.Name] = h.Sum64()
	}
	slices.SortFunc(quick, func(a, b Mutant) int { return cmp.Compare(order[a.Name], order[b.Name]) })
	return quick[:min(sliceOf, len(quick))]
}

// catch is the first test that noticed a bug, "" where none did.
func catch(ctx context.Context, tree Tree, m Mutant) (string, error) {
	for _, n := range m.Noticed {
		r, err := tree.Try(ctx, m, n)
		if err != nil || !r.Passed {
			return n.Package + "." + r.Test, err
		}
	}
	return "", nil
}
