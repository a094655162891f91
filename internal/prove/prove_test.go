package prove

import (
	"path/filepath"
	"slices"
	"testing"
	"time"
)

func TestFiguresAreAppendedALineEach(t *testing.T) {
	path := filepath.Join(t.TempDir(), "figures")
	t.Setenv(EnvFigures, path)
	Report(t, Figure{Rung: 1, Name: "states", Value: 3, Goal: 2})
	Report(t, Figure{Rung: 2, Name: "races", Value: 5, Violations: 1})
	figures, err := Read(path)
	want := []Figure{{Rung: 1, Name: "states", Value: 3, Goal: 2}, {Rung: 2, Name: "races", Value: 5, Violations: 1}}
	if err != nil || !slices.Equal(figures, want) {
		t.Errorf("read back %+v %v, want %+v", figures, err, want)
	}
	if none, err := Read(path + ".none"); err != nil || len(none) != 0 {
		t.Errorf("where nothing was reported: %v %v", none, err)
	}
}

func TestBudgetIsWholeOnlyWhereAProofAsksForIt(t *testing.T) {
	t.Setenv(EnvBudget, "")
	if d, whole := Budget(t); whole || d != 0 {
		t.Errorf("without %s: %v, %v", EnvBudget, d, whole)
	}
	t.Setenv(EnvBudget, "90s")
	if d, whole := Budget(t); !whole || d != 90*time.Second {
		t.Errorf("with 90s: %v, %v", d, whole)
	}
}
