package acceptance

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/internal/testenv"
	"github.com/holdfast-dev/holdfast/store"
	"github.com/holdfast-dev/holdfast/store/sqlite"
)

// wantRefused starts a real server that cannot be started, and wants it to end at
// once, to say what to do, and to leave nothing half-started.
func wantRefused(t *testing.T, says string, args ...string) {
	t.Helper()
	listen := testenv.FreeAddress(t)
	out, ok := tool(t, append([]string{"serve", "--runtime", "simulated", "--listen", listen}, args...)...)
	if ok || !strings.Contains(out, says) {
		t.Errorf("want a refusal with %q:\n%s", says, out)
	}
	for _, wrong := range []string{"holdfast serves", "panic", "goroutine", "hidden"} {
		if strings.Contains(out, wrong) {
			t.Errorf("it says %q:\n%s", wrong, out)
		}
	}
	l, err := net.Listen("tcp", listen)
	if err != nil {
		t.Fatal("something of it listens:", err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}

// Bad input: a SQLite database that cannot be used is refused at the start, and
// says what to do.
func TestBadInput_ADataDirectoryThatCannotBeUsedIsRefused(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(t *testing.T, dir string)
		says  string
	}{
		"a newer schema": {func(t *testing.T, dir string) {
			db, err := sqlite.Open(t.Context(), sqlite.Config{Path: filepath.Join(dir, "fleet.db")})
			if err != nil {
				t.Fatal(err)
			}
			err = db.Update(t.Context(), func(tx store.Tx) error {
				_, err := tx.ExecContext(t.Context(), `INSERT INTO fleet_schema (version_id, is_applied) VALUES (999, 1)`)
				return err
			})
			if err := db.Close(); err != nil {
				t.Error(err)
			}
			if err != nil {
				t.Fatal(err)
			}
		}, "newer schema"},
		"no database": {func(t *testing.T, dir string) {
			if err := os.WriteFile(filepath.Join(dir, "orchestrator.db"), []byte(strings.Repeat("no database ", 1000)), 0o600); err != nil {
				t.Fatal(err)
			}
		}, "is not a SQLite database"},
		"another cluster's fleet": {func(t *testing.T, dir string) {
			other := t.TempDir()
			once(t, other)
			for _, suffix := range []string{"", "-wal", "-shm"} {
				if err := os.Remove(filepath.Join(dir, "fleet.db"+suffix)); err != nil && !os.IsNotExist(err) {
					t.Fatal(err)
				}
				if err := os.Rename(filepath.Join(other, "fleet.db"+suffix), filepath.Join(dir, "fleet.db"+suffix)); err != nil && !os.IsNotExist(err) {
					t.Fatal(err)
				}
			}
		}, "restore both from one backup"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			once(t, dir)
			c.spoil(t, dir)
			wantRefused(t, c.says, "--data-dir", dir)
		})
	}
}

// once runs a server on a data directory, so that everything is in it.
func once(t *testing.T, dir string) {
	t.Helper()
	p := testenv.Serve(t, "once", dir, "--runtime", "simulated")
	p.Stop()
}

// Bad input: a data directory that another server uses is refused, and says who
// that is; the other one goes on.
func TestBadInput_ADataDirectoryInUseIsRefused(t *testing.T) {
	p := testenv.Serve(t, "first", filepath.Join(t.TempDir(), "data"), "--runtime", "simulated")
	wantRefused(t, fmt.Sprintf("in use by process %d", p.PID()), "--data-dir", p.DataDir)
	if status, _ := p.Get(t.Context(), "/readyz"); status != http.StatusOK {
		t.Errorf("the first server: %d", status)
	}
}

// Bad input: a PostgreSQL database that cannot be used is refused at the start,
// and says what to do; its password is not shown.
func TestBadInput_APostgresDatabaseThatCannotBeUsedIsRefused(t *testing.T) {
	server := testenv.SharedPostgres(t)
	good := func() (name, url string) { name = server.Database(t); return name, server.URL(name) }
	exec := func(database string, statements ...string) {
		t.Helper()
		if err := server.Exec(t.Context(), database, statements...); err != nil {
			t.Fatal(err)
		}
	}
	newer, newerURL := good()
	testenv.Serve(t, "newer", filepath.Join(t.TempDir(), "data"), "--runtime", "simulated", "--database", newerURL).Stop()
	exec(newer, `INSERT INTO orchestrator.operation_schema (version_id, is_applied) VALUES (999, true)`)
	readOnly, readOnlyURL := good()
	exec("postgres", `ALTER DATABASE `+readOnly+` SET default_transaction_read_only = on`)
	_, url := good()
	for name, c := range map[string]struct{ url, says string }{
		"a newer schema":    {newerURL, "newer schema"},
		"read-only":         {readOnlyURL, "takes no writes"},
		"unreachable":       {"postgres://u:hidden@127.0.0.1:1/x", "no PostgreSQL server answers at 127.0.0.1:1"},
		"wrong credentials": {strings.Replace(url, "holdfast:", "holdfast:hidden", 1), "refuses the user"},
		"no such database":  {server.URL("nowhere"), "createdb nowhere"},
		"no URL of one":     {"mysql://u:hidden@127.0.0.1/x", "--database is postgres://"},
	} {
		t.Run(name, func(t *testing.T) { wantRefused(t, c.says, "--data-dir", t.TempDir(), "--database", c.url) })
	}
}

// Bad input: a disk that is full at the start refuses it; one that fills up later
// answers UNAVAILABLE, loses nothing that was acknowledged, and is used again once
// there is room.
func TestBadInput_AFullDiskIsSaidClearlyAndLosesNothing(t *testing.T) {
	testenv.RequireRoot(t)
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=8m"); err != nil {
		t.Skip("needs to mount a small file system:", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	fill := func() {
		t.Helper()
		// Ends when the disk is full, which is its purpose.
		out, err := exec.CommandContext(t.Context(), "dd", "if=/dev/zero", "of="+filepath.Join(dir, "filler"), "bs=4k").CombinedOutput()
		if err == nil || !strings.Contains(string(out), "No space left") {
			t.Fatalf("%v %s", err, out)
		}
	}
	empty := func() {
		t.Helper()
		if err := os.Remove(filepath.Join(dir, "filler")); err != nil {
			t.Fatal(err)
		}
	}
	fill()
	wantRefused(t, "no space left on device", "--data-dir", filepath.Join(dir, "early"))
	empty()

	p := testenv.Serve(t, "later", filepath.Join(dir, "data"), "--runtime", "simulated", "--sweep-every", "1s")
	s := &system{Process: p, t: t}
	s.client = s.dial()
	kept := s.create("kept")
	fill()
	raw := s.post("SandboxService/CreateSandbox", `{"requestId":"full","environment":"base"}`)
	if raw.Code != "unavailable" || raw.reason() != holdfast.ReasonStorage {
		t.Errorf("create on a full disk: %d %s\n%s", raw.Status, raw.Body, p.Log())
	}
	if got := s.get(kept.ID); got.State != holdfast.SandboxReady {
		t.Errorf("what was acknowledged: %s", got.State)
	}
	empty()
	if !testenv.Eventually(20*time.Second, func() bool {
		sb, err := s.client.CreateSandbox(t.Context(), base("full"))
		return err == nil && sb.State == holdfast.SandboxReady
	}) {
		t.Errorf("it does not go on with room again\n%s", p.Log())
	}
	p.Stop()
}
