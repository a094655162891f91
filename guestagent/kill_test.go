package guestagent_test

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// killSession kills what is left of a session that this test started.
func killSession(t *testing.T, session int) {
	t.Helper()
	for _, pid := range inSession(t, session) {
		if err := unix.Kill(pid, unix.SIGKILL); err != nil && err != unix.ESRCH {
			t.Error(err)
		}
	}
}

func inSession(t *testing.T, session int) (pids []int) {
	t.Helper()
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range stats {
		raw, err := os.ReadFile(path)
		if err != nil {
			continue // ended meanwhile
		}
		text := string(raw)
		fields := strings.Fields(text[strings.LastIndexByte(text, ')')+1:])
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if err == nil && fields[3] == strconv.Itoa(session) {
			pids = append(pids, pid)
		}
	}
	return pids
}
