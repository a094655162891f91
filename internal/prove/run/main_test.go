package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/internal/prove"
)

func TestThePageSaysWhatIsShortAndWhatIsBroken(t *testing.T) {
	reached := result{rung: rung{number: 1, name: "models"}, figures: []prove.Figure{{Rung: 1, Name: "states", Value: 1234567, Goal: 1000000}}}
	short := result{rung: rung{number: 3, name: "simulation"}, figures: []prove.Figure{{Rung: 3, Name: "seeds", Value: 10, Goal: 100, Note: "twice each"}}}
	broken := result{rung: rung{number: 5, name: "real kills"}, figures: []prove.Figure{{Rung: 5, Name: "kills", Value: 9, Violations: 2}}}
	failed := result{rung: rung{number: 6, name: "histories"}, failure: "its tests: exit status 1"}
	for name, c := range map[string]struct {
		page  page
		says  []string
		wrong []string
	}{
		"a goal reached":              {page{results: []result{reached}}, []string{"1,234,567", "1,000,000  met"}, nil},
		"short of it, time was given": {page{results: []result{short}, timed: true}, []string{"100   SHORT: time ran out", "3 seeds: twice each"}, nil},
		"short of it without":         {page{results: []result{short}}, []string{"100   SHORT"}, []string{"seeds short of the goal"}},
		"a violation":                 {page{results: []result{broken}, timed: true}, []string{"kills"}, []string{"2 violations in kills"}},
		"a rung that failed": {page{results: []result{failed, reached}, timed: true}, []string{"6 FAILED: its tests: exit status 1", "1,234,567"},
			[]string{"rung 6 failed"}},
	} {
		t.Run(name, func(t *testing.T) {
			for _, want := range c.says {
				if got := c.page.String(); !strings.Contains(got, want) {
					t.Errorf("no %q in:\n%s", want, got)
				}
			}
			if got := c.page.wrong(); !slices.Equal(got, c.wrong) {
				t.Errorf("wrong: %q, want %q", got, c.wrong)
			}
		})
	}
}

func TestTestsNamedTestProveAreFoundAndSortedIntoTheirRungs(t *testing.T) {
	root := t.TempDir()
	for path, tests := range map[string]string{
		"orchestrator/decide_model_test.go":           "func TestProveDecide(t *testing.T) {}",
		"simulation/seed_test.go":                     "func TestProveSeeds(t *testing.T) {}\nfunc TestProveMore(t *testing.T) {}\nfunc TestOther(t *testing.T) {}",
		"simulation/more_test.go":                     "func TestProveThird(t *testing.T) {}",
		"simulation/interleaving/race_test.go":        "func TestProve(t *testing.T) {}",
		"internal/kill/prove_test.go":                 "func TestProve5(t *testing.T) {}",
		"internal/mutant/slice_test.go":               "func TestProve7(t *testing.T) {}",
		"simulation/crashpoint/testdata/none_test.go": "func TestProve4(t *testing.T) {}",
	} {
		file := filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte("package p\n\n"+tests+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	rungs, err := find(root)
	if err != nil {
		t.Fatal(err)
	}
	want := map[int][]pkg{1: {{"./orchestrator", 1}}, 2: {{"./simulation/interleaving", 1}}, 3: {{"./simulation", 3}}, 5: {{"./internal/kill", 1}},
		7: {{"./internal/mutant", 1}}}
	for _, r := range rungs {
		if !slices.Equal(r.packages, want[r.number]) {
			t.Errorf("rung %d: %v, want %v", r.number, r.packages, want[r.number])
		}
	}
	if chosen, err := choose(rungs, "5,1"); err != nil || len(chosen) != 2 || chosen[0].number != 5 {
		t.Errorf("chosen: %v %v", chosen, err)
	}
	if _, err := choose(rungs, "8"); err == nil {
		t.Error("rung 8 was found")
	}
}

func TestTimeThatARungLeftIsTheOthers(t *testing.T) {
	ahead := []rung{{weight: 1}, {weight: 3}}
	if got := shareOf(ahead, 8*time.Minute); got != 2*time.Minute {
		t.Errorf("the first of two gets %s of 8 min", got)
	}
	if got := shareOf(ahead[1:], 7*time.Minute); got != 7*time.Minute {
		t.Errorf("the last gets %s of the 7 min that are left", got)
	}
	if got := shareOf(ahead, -time.Minute); got != time.Second {
		t.Errorf("with no time left: %s", got)
	}
}

// A rung that failed keeps what it had counted by then.
func TestAFailedRungsFiguresAreKept(t *testing.T) {
	dir := t.TempDir()
	for path, text := range map[string]string{
		"go.mod": "module example.org/m\n",
		"simulation/history/x_test.go": `package x

import ("os"; "testing")

func TestProve6(t *testing.T) {
	line := []byte("{\"rung\":6,\"name\":\"histories\",\"value\":7,\"violations\":1}\n")
	if err := os.WriteFile(os.Getenv("HOLDFAST_PROVE_FIGURES"), line, 0o600); err != nil { t.Fatal(err) }
	t.Fatalf("budget %s", os.Getenv("HOLDFAST_PROVE"))
}
`} {
		file := filepath.Join(dir, path)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Chdir(dir)
	rungs, err := find(".")
	if err != nil {
		t.Fatal(err)
	}
	got := climb(t.Context(), rungs[5], time.Minute, filepath.Join(dir, "rung-6"))
	if got.failure == "" || len(got.figures) != 1 || got.figures[0].Value != 7 || !strings.Contains(got.tail(), "budget 1m0s") {
		t.Errorf("%+v\n%s", got, got.tail())
	}
	if missing := climb(t.Context(), rungs[0], time.Minute, filepath.Join(dir, "rung-1")); missing.failure == "" {
		t.Error("a rung without tests was climbed")
	}
}
