package acceptance

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/client"
	"github.com/holdfast-dev/holdfast/internal/testenv"
	"github.com/holdfast-dev/holdfast/rpc"
)

const adminKey = "hf_0123456789abcdef0123456789abcdef"

// replicated is two processes that are orchestrator and fleet, and one that is a
// host, on one PostgreSQL server. No replica leads; whoever calls "the" fleet or
// "the" orchestrator goes through a balancer.
type replicated struct {
	t        *testing.T
	postgres *testenv.Postgres
	replicas [2]*testenv.Process
	host     *testenv.Process
}

func serveReplicated(t *testing.T) *replicated {
	t.Helper()
	s := &replicated{t: t, postgres: testenv.StartPostgres(t)}
	dir := t.TempDir()
	write := func(path, text string) string {
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(text+"\n"), 0o600)); err != nil {
			t.Fatal(err)
		}
		return path
	}
	common := []string{"--cluster-key-file", write(filepath.Join(dir, "cluster.key"), "0123456789abcdef0123456789abcdef"), "--sweep-every", "500ms"}
	at := [2]string{testenv.FreeAddress(t), testenv.FreeAddress(t)}
	balanced := "http://" + balance(t, at[:])
	database := s.postgres.URL(s.postgres.Database(t))
	var starts sync.WaitGroup
	for i := range s.replicas {
		data := filepath.Join(dir, fmt.Sprint("replica", i))
		write(filepath.Join(data, "admin.key"), adminKey)
		starts.Go(func() { // together: they take turns at the migrations
			s.replicas[i] = testenv.ServeAt(t, fmt.Sprint("replica", i), data, at[i], append([]string{"--roles", "orchestrator,fleet",
				"--database", database, "--claim-ttl", "2s", "--advertise-url", balanced}, common...)...)
		})
	}
	starts.Wait()
	if t.Failed() {
		t.FailNow()
	}
	data := filepath.Join(dir, "host")
	if err := os.Mkdir(data, 0o700); err != nil {
		t.Fatal(err)
	}
	s.host = testenv.Serve(t, "host", data, append([]string{"--roles", "host", "--runtime", "simulated",
		"--capacity-cpu", "1000000", "--capacity-memory", "1000000000000", "--capacity-instances", "1000", "--orchestrator-url", balanced, "--fleet-url", balanced}, common...)...)
	return s
}

// balance passes connections on to whichever of the addresses takes them.
func balance(t *testing.T, to []string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	var turn atomic.Int64
	pass := func(from net.Conn) {
		defer func() { _ = from.Close() }()
		for range to {
			c, err := net.Dial("tcp", to[int(turn.Add(1))%len(to)])
			if err != nil {
				continue
			}
			go func() {
				_, _ = io.Copy(c, from) // either side may go at any time
				_ = c.Close()
			}()
			_, _ = io.Copy(from, c)
			return
		}
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go pass(c)
		}
	}()
	return l.Addr().String()
}

func (s *replicated) client(i int) *client.Client {
	s.t.Helper()
	c, err := client.New(s.replicas[i].URL, client.WithAPIKey(adminKey), client.WithOverallTimeout(time.Minute))
	if err != nil {
		s.t.Fatal(err)
	}
	return c
}

func (s *replicated) logs() string {
	return "replica 0:\n" + s.replicas[0].Log() + "\nreplica 1:\n" + s.replicas[1].Log() + "\nhost:\n" + s.host.Log() +
		"\npostgres:\n" + s.postgres.Log()
}

func base(requestID string) holdfast.CreateSandbox {
	return holdfast.CreateSandbox{RequestID: requestID, Environment: "base"}
}

// contract: A3, A6: two replicas on one database are one service.
func TestA3_WhatOneReplicaBeganTheOtherShowsAndEnds(t *testing.T) {
	s := serveReplicated(t)
	a, b := s.client(0), s.client(1)
	sb, err := a.CreateSandbox(t.Context(), base("r1"))
	if err != nil || sb.State != holdfast.SandboxReady {
		t.Fatalf("create: %s %v\n%s", sb.State, err, s.logs())
	}
	again, err := b.CreateSandbox(t.Context(), base("r1"))
	if err != nil || again.ID != sb.ID || again.State != holdfast.SandboxReady || again.Generation != 1 {
		t.Fatalf("repeat at the other: %+v %v\n%s", again, err, s.logs())
	}
	m := holdfast.MutateSandbox{ID: sb.ID}
	for _, step := range []struct {
		call func(context.Context, holdfast.MutateSandbox) (holdfast.Sandbox, error)
		want holdfast.SandboxState
	}{
		{b.SuspendSandbox, holdfast.SandboxSuspended}, {a.SuspendSandbox, holdfast.SandboxSuspended},
		{a.ResumeSandbox, holdfast.SandboxReady}, {b.DeleteSandbox, holdfast.SandboxDeleted}, {a.DeleteSandbox, holdfast.SandboxDeleted},
	} {
		if got, err := step.call(t.Context(), m); err != nil || got.State != step.want {
			t.Fatalf("want %s: %s %v\n%s", step.want, got.State, err, s.logs())
		}
	}
}

// contract: A6, A15: a replica dies in the middle of a create, and the other one
// carries it on once the dead one's claim has ended: for a client that repeats
// it, and for one that never comes back.
func TestA15_AnotherReplicaCarriesOnWhatADeadOneBegan(t *testing.T) {
	s := serveReplicated(t)
	b := s.client(1)
	raw := rpc.Dial(rpc.NewHTTPClient(), s.replicas[0].URL, adminKey)
	if _, err := s.client(0).CreateSandbox(t.Context(), base("first")); err != nil {
		t.Fatalf("create: %v\n%s", err, s.logs())
	}
	s.host.Signal(syscall.SIGSTOP) // the creates get as far as their host
	var calls sync.WaitGroup
	for _, id := range []string{"repeated", "abandoned"} {
		calls.Go(func() {
			if _, err := raw.Sandboxes.CreateSandbox(t.Context(), holdfast.Caller{}, base(id)); err == nil {
				t.Errorf("create %s succeeded on a dead replica", id)
			}
		})
	}
	claimed := func() (n int) {
		page, err := b.ListSandboxes(t.Context(), listAll())
		if err != nil {
			t.Fatal(err)
		}
		for _, sb := range page.Sandboxes {
			if sb.State == holdfast.SandboxCreating && sb.Operation != nil && sb.Operation.Claim != nil {
				n++
			}
		}
		return n
	}
	if !testenv.Eventually(20*time.Second, func() bool { return claimed() == 2 }) {
		t.Fatalf("%d creates are under way, want 2\n%s", claimed(), s.logs())
	}
	s.replicas[0].Kill()
	calls.Wait()
	s.host.Signal(syscall.SIGCONT)
	sb, err := b.CreateSandbox(t.Context(), base("repeated"))
	if err != nil || sb.State != holdfast.SandboxReady || sb.Incarnation != 1 {
		t.Fatalf("repeat at the other: %+v %v\n%s", sb, err, s.logs())
	}
	s.wantSettled(b, 3)
	s.replicas[0].Start()
	s.wantSettled(s.client(0), 3)
}

// wantSettled waits until so many sandboxes are READY and nothing is pending.
func (s *replicated) wantSettled(c *client.Client, ready int) {
	s.t.Helper()
	var seen string
	if !testenv.Eventually(time.Minute, func() bool {
		page, err := c.ListSandboxes(s.t.Context(), listAll())
		if err != nil {
			seen = err.Error()
			return false
		}
		n := 0
		seen = fmt.Sprint(len(page.Sandboxes), " sandboxes")
		for _, sb := range page.Sandboxes {
			if sb.State == holdfast.SandboxReady && sb.Operation == nil {
				n++
			} else {
				seen += fmt.Sprintf("; %s %s %+v", sb.ID, sb.State, sb.Operation)
			}
		}
		return n == ready && len(page.Sandboxes) == ready
	}) {
		s.t.Fatalf("want %d READY: %s\n%s", ready, seen, s.logs())
	}
}

// PostgreSQL is killed and started again under load. Meanwhile calls are
// answered UNAVAILABLE, nothing that was acknowledged is lost, nothing is done
// twice, and no operation is stuck afterwards.
func TestC6_ARestartOfTheDatabaseLosesNothing(t *testing.T) {
	s := serveReplicated(t)
	l := &load{t: t, ready: map[string]holdfast.SandboxID{}, failures: map[string]int{}}
	ctx, stop := context.WithTimeout(t.Context(), 2*time.Minute)
	defer stop()
	var workers sync.WaitGroup
	for w := range 8 {
		api := rpc.Dial(rpc.NewHTTPClient(), s.replicas[w%2].URL, adminKey)
		workers.Go(func() { l.work(ctx, api, w) })
	}
	l.await(ctx, 40)
	for range 2 {
		if err := s.postgres.Crash(); err != nil {
			t.Fatal(err)
		}
		before := l.failed.Load()
		if !testenv.Eventually(20*time.Second, func() bool { return l.failed.Load() >= before+16 }) {
			t.Errorf("only %d calls failed without a database", l.failed.Load()-before)
		}
		if err := s.postgres.Start(); err != nil {
			t.Fatal(err)
		}
		l.await(ctx, 40)
	}
	l.stopping.Store(true)
	workers.Wait()
	for failure, n := range l.failures {
		switch code, _, _ := strings.Cut(failure, " "); holdfast.Code(code) {
		case holdfast.Unavailable, holdfast.Aborted, holdfast.DeadlineExceeded:
		default:
			t.Errorf("%d calls were answered %s: not one to repeat", n, failure)
		}
	}
	if l.failures[fmt.Sprint(holdfast.Unavailable, " ", holdfast.ReasonStorage)] == 0 {
		t.Errorf("no call was told that the database is away: %v", l.failures)
	}
	s.wantSettled(s.client(0), len(l.ready))
	s.wantSettled(s.client(1), len(l.ready))
	for requestID, id := range l.ready {
		if sb, err := s.client(1).CreateSandbox(t.Context(), base(requestID)); err != nil || sb.ID != id || sb.Incarnation != 1 {
			t.Errorf("%s was acknowledged as %s, and is %s of incarnation %d, %v", requestID, id, sb.ID, sb.Incarnation, err)
		}
	}
	t.Logf("%d creates acknowledged, %d calls failed: %v", l.done.Load(), l.failed.Load(), l.failures)
}

// load creates sandboxes and deletes every other one, repeating each call until
// it succeeds.
type load struct {
	t            *testing.T
	done, failed atomic.Int64
	stopping     atomic.Bool

	mu       sync.Mutex
	ready    map[string]holdfast.SandboxID // by request id: acknowledged, and not deleted
	failures map[string]int                // by code and reason
}

func (l *load) work(ctx context.Context, api rpc.Services, w int) {
	for n := 0; !l.stopping.Load() && ctx.Err() == nil; n++ {
		id := fmt.Sprintf("w%d-%d", w, n)
		sb, err := l.until(ctx, func(ctx context.Context) (holdfast.Sandbox, error) {
			return api.Sandboxes.CreateSandbox(ctx, holdfast.Caller{}, base(id))
		})
		if err == nil && n%2 == 1 {
			_, err = l.until(ctx, func(ctx context.Context) (holdfast.Sandbox, error) {
				return api.Sandboxes.DeleteSandbox(ctx, holdfast.Caller{}, holdfast.MutateSandbox{ID: sb.ID})
			})
		}
		if err != nil {
			l.t.Errorf("%s: %v", id, err)
			return
		}
		l.mu.Lock()
		if n%2 == 0 {
			l.ready[id] = sb.ID
		}
		l.mu.Unlock()
		l.done.Add(1)
	}
}

func (l *load) until(ctx context.Context, call func(context.Context) (holdfast.Sandbox, error)) (holdfast.Sandbox, error) {
	for {
		one, cancel := context.WithTimeout(ctx, 20*time.Second)
		sb, err := call(one)
		cancel()
		if err == nil {
			return sb, nil
		}
		if ctx.Err() != nil {
			return sb, err
		}
		l.failed.Add(1)
		l.mu.Lock()
		l.failures[fmt.Sprint(holdfast.CodeOf(err), " ", holdfast.ReasonOf(err))]++
		l.mu.Unlock()
		select {
		case <-ctx.Done():
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// await returns when so many more creates were acknowledged.
func (l *load) await(ctx context.Context, more int64) {
	l.t.Helper()
	want := l.done.Load() + more
	if !testenv.Eventually(time.Minute, func() bool { return l.done.Load() >= want || ctx.Err() != nil }) || ctx.Err() != nil {
		l.t.Fatalf("%d of %d creates were acknowledged: %v", l.done.Load(), want, l.failures)
	}
}
