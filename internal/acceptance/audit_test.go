package acceptance

import (
	"encoding/json"
	"os"
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
	if left := livingIn(t, temp); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// livingIn lists the processes that have something below a directory mounted: what
// runs in instances that were made there has its root file system from it.
func livingIn(t *testing.T, dir string) (list []string) {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range all {
		mounts, err := os.ReadFile(path)
		if err == nil && strings.Contains(string(mounts), dir) { // else it has ended meanwhile
			list = append(list, path)
		}
	}
	return list
}
