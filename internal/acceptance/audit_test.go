package acceptance

import (
	"encoding/json"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/holdfast-dev/holdfast/internal/testenv"
)

// The program runs the matrix on real containers, says what it saw, and leaves
// nothing behind.
// contract: F2
func TestF2_TheAuditIsRunForRealOnContainers(t *testing.T) {
	temp := t.TempDir()
	before := testenv.TakeCensus(t, temp)
	cmd := exec.CommandContext(t.Context(), filepath.Join(testenv.Binaries(t), "holdfast"), "audit", "--inject", "--runtime", "runc", "--at-once", "3", "-o", "json")
	cmd.Env = append(cmd.Environ(), "TMPDIR="+temp)
	var said strings.Builder
	cmd.Stderr = &said
	out, err := cmd.Output()
	var report struct {
		Runtime string
		Results []struct{ Hop, Message, Cell, Failure string }
		Missing []string
	}
	if jsonErr := json.Unmarshal(out, &report); jsonErr != nil {
		t.Fatalf("%v: %v: %s %s", err, jsonErr, out, &said)
	}
	if err != nil || len(report.Results) < 37 || report.Runtime != "runc" {
		t.Errorf("%d cells on %s: %v %s", len(report.Results), report.Runtime, err, &said)
	}
	for _, r := range report.Results {
		if r.Failure != "" {
			t.Errorf("%s %s, %s: %s", r.Hop, r.Message, r.Cell, r.Failure)
		}
	}
	for _, m := range report.Missing {
		t.Errorf("no experiment for %s", m)
	}
	for _, line := range testenv.TakeCensus(t, temp).Difference(before) {
		t.Errorf("left behind: %s", line)
	}
}
