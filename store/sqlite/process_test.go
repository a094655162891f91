package sqlite_test

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/holdfast-dev/holdfast/store"
	"github.com/holdfast-dev/holdfast/store/sqlite"
	"github.com/holdfast-dev/holdfast/store/storetest"
)

// child runs one of this file's tests again, as another process, on a directory. The child says "ready" and goes on
// until it is killed.
func child(t *testing.T, dir string) (*exec.Cmd, *bufio.Scanner) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe, "-test.run=^"+t.Name()+"$", "-test.timeout=60s")
	cmd.Env = append(os.Environ(), "STORE_TEST_CHILD="+dir)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if cmd.ProcessState == nil {
			kill(t, cmd)
		}
	})
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		if lines.Text() == "ready" {
			return cmd, lines
		}
	}
	t.Fatal("the child process never became ready", lines.Err())
	return nil, nil
}

func kill(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	if err := cmd.Process.Kill(); err != nil {
		t.Error(err)
	}
	var exit *exec.ExitError
	if err := cmd.Wait(); !errors.As(err, &exit) {
		t.Errorf("the child process ended with %v, not by a signal", err)
	}
}

// TestLockDirIsHeldUntilDeath: contract: A6, the lock proves earlier holders dead.
func TestLockDirIsHeldUntilDeath(t *testing.T) {
	if dir := os.Getenv("STORE_TEST_CHILD"); dir != "" {
		if _, err := sqlite.LockDir(dir); err != nil {
			t.Fatal(err)
		}
		fmt.Println("ready")
		select {}
	}
	dir := filepath.Join(t.TempDir(), "new", "data")
	holder, _ := child(t, dir)
	_, err := sqlite.LockDir(dir)
	var locked *sqlite.LockedError
	if !errors.As(err, &locked) {
		t.Fatalf("LockDir = %v, want a LockedError", err)
	}
	if locked.PID != holder.Process.Pid || locked.Dir != dir {
		t.Errorf("it says %+v, want process %d and %s", locked, holder.Process.Pid, dir)
	}
	if msg := err.Error(); !strings.Contains(msg, dir) || !strings.Contains(msg, "stop that one first") {
		t.Errorf("the error does not help: %s", msg)
	}
	kill(t, holder)
	lock, err := sqlite.LockDir(dir)
	if err != nil {
		t.Fatalf("after the holder's death: %v", err)
	}
	if _, err := sqlite.LockDir(dir); !errors.As(err, &locked) || locked.PID != os.Getpid() {
		t.Errorf("a second lock of the same process = %v", err)
	}
	if err := lock.Unlock(); err != nil {
		t.Fatal(err)
	}
	if lock, err = sqlite.LockDir(dir); err != nil {
		t.Fatalf("after Unlock: %v", err)
	}
	if err := lock.Unlock(); err != nil {
		t.Error(err)
	}
}

// TestAcknowledgedUpdatesSurviveSIGKILL: whatever was reported is there afterwards.
func TestAcknowledgedUpdatesSurviveSIGKILL(t *testing.T) {
	if dir := os.Getenv("STORE_TEST_CHILD"); dir != "" {
		writeForEver(t, dir)
	}
	dir := t.TempDir()
	acknowledged := map[string]bool{}
	for round := range 5 {
		writer, lines := child(t, dir)
		for n := 0; n < 100+37*round && lines.Scan(); n++ {
			acknowledged[lines.Text()] = true
		}
		kill(t, writer)
	}
	db := openFile(t, filepath.Join(dir, "kill.db"))
	err := db.View(t.Context(), func(tx store.Tx) error {
		var verdict string
		if err := tx.QueryRowContext(t.Context(), "PRAGMA integrity_check").Scan(&verdict); err != nil || verdict != "ok" {
			return fmt.Errorf("integrity check: %s %w", verdict, err)
		}
		for k := range acknowledged {
			if _, err := storetest.Get(tx, k); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	if len(acknowledged) < 500 {
		t.Errorf("only %d updates were acknowledged", len(acknowledged))
	}
}

// writeForEver updates from many goroutines and prints each key once its Update has returned.
func writeForEver(t *testing.T, dir string) {
	db, err := sqlite.Open(t.Context(), sqlite.Config{Path: filepath.Join(dir, "kill.db")}, storetest.Migrations())
	if err != nil {
		t.Fatal(err)
	}
	fmt.Println("ready")
	var wg sync.WaitGroup
	for w := range 16 {
		wg.Go(func() {
			for n := 0; ; n++ {
				k := fmt.Sprint(os.Getpid(), "/", w, "/", n)
				if err := db.Update(t.Context(), func(tx store.Tx) error { return storetest.Put(tx, k, 1) }); err != nil {
					panic(err)
				}
				fmt.Println(k)
			}
		})
	}
	wg.Wait()
}
