package prove

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestFiguresAreAppendedALineEach(t *testing.T) {
	path := filepath.Join(t.TempDir(), "figures")
	t.Setenv(EnvFigures, path)
	Report(t, Figure{Rung: 1, Name: "states", Value: 3, Goal: 2})
	Report(t, Figure{Rung: 2, Name: "races", Value: 5, Violations: 1})
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(data)), "\n")
	if len(lines) != 2 {
		t.Fatalf("%d lines, want 2: %s", len(lines), data)
	}
	var second Figure
	if err := json.Unmarshal([]byte(lines[1]), &second); err != nil {
		t.Fatal(err)
	}
	if want := (Figure{Rung: 2, Name: "races", Value: 5, Violations: 1}); second != want {
		t.Errorf("read back %+v, want %+v", second, want)
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
