package testenv

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// postgresStart bounds a throwaway server's start and its stop.
const postgresStart = 60 * time.Second

// Postgres is a throwaway PostgreSQL server on a random loopback port, with its files in a directory of its own. It
// ends with the test process, whatever ends that.
type Postgres struct {
	dir      string
	port     int
	password string
	settings []string
	account  *syscall.Credential // whom it runs as; nil for this process's user

	mu    sync.Mutex
	cmd   *exec.Cmd
	life  io.WriteCloser // the keeper ends the server when this closes
	ended chan struct{}
}

// disposable are the settings of a server whose data nobody misses.
func disposable() []string {
	return []string{"fsync=off", "full_page_writes=off", "shared_buffers=32MB", "max_connections=200", "log_min_messages=warning"}
}

// RequirePostgres skips, loudly and by name, where there is no server to start.
func RequirePostgres(t testing.TB) {
	t.Helper()
	if _, err := postgresBinaries(); err != nil {
		t.Skip("needs the PostgreSQL server's programs: run make test, which installs them")
	}
}

// StartPostgres starts a server for one test; it is stopped and removed when the test ends. Settings are like
// "fsync=on"; without that one it is as fast as its data is worth nothing.
func StartPostgres(t testing.TB, settings ...string) *Postgres {
	t.Helper()
	RequirePostgres(t)
	p, err := newPostgres(settings)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Remove(); err != nil {
			t.Error(err)
		}
	})
	return p
}

// shared is this process's server for the tests that neither stop nor configure one.
var shared = sync.OnceValues(newShared)

func newShared() (*Postgres, error) { return newPostgres(nil) }

// SharedPostgres is one server for all tests of this process, which it ends with.
func SharedPostgres(t testing.TB) *Postgres {
	t.Helper()
	RequirePostgres(t)
	p, err := shared()
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// NewPostgres starts a server for a program that is no test; see StartPostgres. The caller removes it.
func NewPostgres(settings ...string) (*Postgres, error) { return newPostgres(settings) }

// postgresBinaries is the directory of the newest server that is installed.
func postgresBinaries() (string, error) {
	found, err := filepath.Glob("/usr/lib/postgresql/*/bin/postgres")
	if err != nil {
		return "", err
	}
	version := func(path string) int {
		n, _ := strconv.Atoi(filepath.Base(filepath.Dir(filepath.Dir(path)))) // what is no number is no version
		return n
	}
	if len(found) > 0 {
		return filepath.Dir(slices.MaxFunc(found, func(a, b string) int { return version(a) - version(b) })), nil
	}
	path, err := exec.LookPath("postgres")
	return filepath.Dir(path), err
}

// newPostgres makes a cluster and starts its server.
func newPostgres(settings []string) (_ *Postgres, err error) {
	p := &Postgres{password: rand.Text(), settings: append(disposable(), settings...)}
	if p.dir, err = os.MkdirTemp("", "holdfast-postgres-"); err != nil {
		return nil, fmt.Errorf("throwaway PostgreSQL: %w", err)
	}
	if err = p.initialize(); err == nil {
		err = p.Start()
	}
	if err != nil {
		return nil, fmt.Errorf("throwaway PostgreSQL: %w", errors.Join(err, os.RemoveAll(p.dir)))
	}
	return p, nil
}

func (p *Postgres) initialize() error {
	if os.Geteuid() == 0 { // the server refuses root
		if err := p.lendToUnprivileged(); err != nil {
			return err
		}
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	p.port = l.Addr().(*net.TCPAddr).Port
	if err := l.Close(); err != nil {
		return err
	}
	secret := filepath.Join(p.dir, "password")
	if err := os.WriteFile(secret, []byte(p.password), 0o644); err != nil { // its directory is private
		return err
	}
	bin, err := postgresBinaries()
	if err != nil {
		return err
	}
	cmd := p.command(filepath.Join(bin, "initdb"), "-D", filepath.Join(p.dir, "data"), "-U", "holdfast", "--pwfile", secret,
		"--auth-local=trust", "--auth-host=scram-sha-256", "--locale=C", "--encoding=UTF8", "--no-sync")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("initdb: %w\n%s", err, out)
	}
	return nil
}

func (p *Postgres) lendToUnprivileged() error {
	who, err := user.Lookup("postgres")
	if err != nil {
		if who, err = user.Lookup("nobody"); err != nil {
			return err
		}
	}
	uid, err1 := strconv.ParseUint(who.Uid, 10, 32)
	gid, err2 := strconv.ParseUint(who.Gid, 10, 32)
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	p.account = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	return os.Chown(p.dir, int(uid), int(gid))
}

func (p *Postgres) command(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(name, args...)
	cmd.Dir = p.dir
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Credential: p.account}
	return cmd
}

// keeper runs the server and ends it when its own input ends, which it does with the test process too; then the files
// go as well. A line says that they shall stay.
const keeper = `"$@" & server=$!
keep=; read -r keep
kill -"${keep:-QUIT}" $server 2>/dev/null
wait $server
[ -n "$keep" ] || rm -rf "$PWD"`

// Start starts the server, again after Stop or Crash, and waits until it answers.
func (p *Postgres) Start() error {
	bin, err := postgresBinaries()
	if err != nil {
		return err
	}
	args := []string{"-c", keeper, "keeper", filepath.Join(bin, "postgres"), "-D", filepath.Join(p.dir, "data"),
		"-c", "port=" + strconv.Itoa(p.port), "-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories=" + p.dir}
	for _, s := range p.settings {
		args = append(args, "-c", s)
	}
	log, err := os.OpenFile(p.logFile(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	cmd := p.command("/bin/sh", args...)
	cmd.Stdout, cmd.Stderr = log, log
	life, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err = errors.Join(err, log.Close()); err != nil {
		return err
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = cmd.Wait() // how it ended is what its log says
	}()
	p.mu.Lock()
	p.cmd, p.life, p.ended = cmd, life, ended
	p.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), postgresStart)
	defer cancel()
	for {
		c, err := pgx.Connect(ctx, p.local("postgres"))
		if err == nil {
			return c.Close(ctx)
		}
		select {
		case <-ended:
			return fmt.Errorf("it ended at once: %w\n%s", err, p.Log())
		case <-ctx.Done():
			return fmt.Errorf("it does not answer: %w\n%s", err, p.Log())
		case <-time.After(20 * time.Millisecond): // the server has no signal for this
		}
	}
}

// Stop ends the server in order; sessions are cut off. Crash ends it as a loss of power would, but for the disk.
func (p *Postgres) Stop() error { return p.end("INT\n") }

// Crash kills every process of the server at once, so that its next start recovers from the log.
func (p *Postgres) Crash() error { return p.end("QUIT\n") }

// KillPostmaster kills the server's first process alone with SIGKILL, and returns when the others, which notice that by
// themselves, are gone too: before that no other server may start on these files.
func (p *Postgres) KillPostmaster() error {
	raw, err := os.ReadFile(filepath.Join(p.dir, "data", "postmaster.pid"))
	if err != nil {
		return fmt.Errorf("kill PostgreSQL: %w", err)
	}
	first, _, _ := strings.Cut(string(raw), "\n")
	children, err := childrenOf(first)
	if err != nil {
		return fmt.Errorf("kill PostgreSQL: %w", err)
	}
	if err := p.end("KILL\n"); err != nil {
		return err
	}
	gone := func() bool {
		return !slices.ContainsFunc(children, func(dir string) bool {
			stat, err := os.ReadFile(dir + "/stat")
			return err == nil && !strings.Contains(string(stat), ") Z ")
		})
	}
	if !Eventually(postgresStart, gone) {
		return fmt.Errorf("PostgreSQL's processes outlive its first one: %v", children)
	}
	return nil
}

// childrenOf are the directories in /proc of a process's children.
func childrenOf(pid string) ([]string, error) {
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return nil, err
	}
	var found []string
	for _, path := range stats {
		raw, err := os.ReadFile(path)
		if err != nil {
			continue // gone meanwhile
		}
		_, after, _ := strings.Cut(string(raw), ") ")
		if fields := strings.Fields(after); len(fields) > 1 && fields[1] == pid {
			found = append(found, filepath.Dir(path))
		}
	}
	return found, nil
}

// Remove ends the server and removes its files.
func (p *Postgres) Remove() error { return errors.Join(p.end(""), os.RemoveAll(p.dir)) }

func (p *Postgres) end(word string) error {
	p.mu.Lock()
	life, ended := p.life, p.ended
	p.life = nil
	p.mu.Unlock()
	if life == nil {
		return nil
	}
	_, err := io.WriteString(life, word)
	if closed := life.Close(); !errors.Is(closed, os.ErrClosed) { // else it has ended by now, and its end was faster
		err = errors.Join(err, closed)
	}
	select {
	case <-ended:
		return err
	case <-time.After(postgresStart):
		return errors.Join(err, fmt.Errorf("PostgreSQL did not end within %s\n%s", postgresStart, p.Log()))
	}
}

func (p *Postgres) logFile() string { return filepath.Join(p.dir, "log") }

// Log is what the server wrote, its last 16 KiB.
func (p *Postgres) Log() string {
	raw, err := os.ReadFile(p.logFile())
	if err != nil {
		return err.Error()
	}
	return string(raw[max(0, len(raw)-16<<10):])
}

// URL names a database of the server as holdfast serve takes it, over TCP and with a password.
func (p *Postgres) URL(database string) string {
	return fmt.Sprintf("postgres://holdfast:%s@%s/%s", p.password, p.Address(), database)
}

// Address is host and port at which the server listens.
func (p *Postgres) Address() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(p.port)) }

// local is the cheaper way: the socket, which is in a private directory.
func (p *Postgres) local(database string) string {
	return fmt.Sprintf("postgres://holdfast@/%s?host=%s&port=%d", database, p.dir, p.port)
}

// Exec runs statements in a database.
func (p *Postgres) Exec(ctx context.Context, database string, statements ...string) error {
	return execute(ctx, p.local(database), statements...)
}

func execute(ctx context.Context, url string, statements ...string) error {
	c, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	for _, s := range statements {
		if _, err = c.Exec(ctx, s); err != nil {
			err = fmt.Errorf("%s: %w", s, err)
			break
		}
	}
	return errors.Join(err, c.Close(ctx))
}

// Database makes a new, empty database, with options of CREATE DATABASE, and returns its name. It goes with the server.
func (p *Postgres) Database(t testing.TB, options ...string) string {
	t.Helper()
	name := "d" + strings.ToLower(rand.Text())
	if err := p.Exec(t.Context(), "postgres", "CREATE DATABASE "+name+" "+strings.Join(options, " ")); err != nil {
		t.Fatal(err)
	}
	return name
}
