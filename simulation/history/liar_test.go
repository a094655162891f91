package history

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/internal/prove"
	"github.com/holdfast-dev/holdfast/rpc"
)

// liar stands before a real server and answers some calls as a server with one
// bug would. Whatever it does not lie about is the server's.
type liar struct {
	holdfast.SandboxService
	background *sync.WaitGroup
}

// early answers a delete before it is done.
type early struct{ liar }

func (l early) DeleteSandbox(ctx context.Context, _ holdfast.Caller, in holdfast.MutateSandbox) (holdfast.Sandbox, error) {
	s, err := l.GetSandbox(ctx, nobody(), in.ID)
	if err != nil || s.Operation != nil || s.State != ready && s.State != suspended {
		return l.SandboxService.DeleteSandbox(ctx, nobody(), in)
	}
	l.background.Go(func() {
		later := time.NewTimer(30 * time.Millisecond)
		defer later.Stop()
		<-later.C
		_, _ = l.SandboxService.DeleteSandbox(context.WithoutCancel(ctx), nobody(), in) // it said so already
	})
	s.State, s.Generation, s.ExpiresAt = deleted, s.Generation+1, time.Time{}
	return s, nil
}

// stale answers reads from what it read up to 100 ms ago.
type stale struct {
	liar
	mu    *sync.Mutex
	known map[holdfast.SandboxID]kept
}

type kept struct {
	holdfast.Sandbox
	at time.Time
}

func (l stale) GetSandbox(ctx context.Context, _ holdfast.Caller, id holdfast.SandboxID) (holdfast.Sandbox, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if k := l.known[id]; time.Since(k.at) < 100*time.Millisecond {
		return k.Sandbox, nil
	}
	s, err := l.SandboxService.GetSandbox(ctx, nobody(), id)
	if err == nil {
		l.known[id] = kept{s, time.Now()}
	}
	return s, err
}

// forgetful keeps request ids for every third create alone.
type forgetful struct {
	liar
	creates *atomic.Int64
}

func (l forgetful) CreateSandbox(ctx context.Context, _ holdfast.Caller, in holdfast.CreateSandbox) (holdfast.Sandbox, error) {
	if n := l.creates.Add(1); n%3 == 0 {
		in.RequestID = fmt.Sprintf("%s-again-%d", in.RequestID, n)
	}
	return l.SandboxService.CreateSandbox(ctx, nobody(), in)
}

// idle answers what was asked for and does nothing: deletes, or extensions.
type idle struct {
	liar
	verb Verb
}

func (l idle) DeleteSandbox(ctx context.Context, _ holdfast.Caller, in holdfast.MutateSandbox) (holdfast.Sandbox, error) {
	s, err := l.GetSandbox(ctx, nobody(), in.ID)
	if l.verb != Delete || err != nil || s.State != ready {
		return l.SandboxService.DeleteSandbox(ctx, nobody(), in)
	}
	s.State, s.Operation, s.ExpiresAt, s.Generation = deleted, nil, time.Time{}, s.Generation+1
	return s, nil
}

func (l idle) ExtendSandbox(ctx context.Context, _ holdfast.Caller, in holdfast.ExtendSandbox) (holdfast.Sandbox, error) {
	s, err := l.GetSandbox(ctx, nobody(), in.ID)
	until := time.Now().Add(in.TTL)
	if l.verb != Extend || err != nil || s.State != ready || s.Operation != nil || !until.After(s.ExpiresAt) {
		return l.SandboxService.ExtendSandbox(ctx, nobody(), in)
	}
	s.ExpiresAt = until.Truncate(time.Microsecond)
	return s, nil
}

// killer deletes what somebody extends.
type killer struct{ liar }

func (l killer) ExtendSandbox(ctx context.Context, _ holdfast.Caller, in holdfast.ExtendSandbox) (holdfast.Sandbox, error) {
	s, err := l.SandboxService.ExtendSandbox(ctx, nobody(), in)
	if err == nil {
		l.background.Go(func() {
			_, _ = l.SandboxService.DeleteSandbox(context.WithoutCancel(ctx), nobody(), holdfast.MutateSandbox{ID: in.ID}) // nobody asked for it
		})
	}
	return s, err
}

// restarter starts a process for every call.
type restarter struct {
	holdfast.ProcessService
	starts *atomic.Int64
}

func (l restarter) StartProcess(ctx context.Context, _ holdfast.Caller, id holdfast.SandboxID, in holdfast.StartProcess) (holdfast.Process, error) {
	in.RequestID = fmt.Sprintf("%s-%d", in.RequestID, l.starts.Add(1))
	return l.ProcessService.StartProcess(ctx, nobody(), id, in)
}

// dreamer answers that a session sleeps, and lets it run.
type dreamer struct{ holdfast.SessionService }

func (l dreamer) SuspendSession(ctx context.Context, _ holdfast.Caller, in holdfast.MutateSession) (holdfast.Session, error) {
	s, err := l.GetSession(ctx, nobody(), in.ID)
	if err != nil || s.Operation != nil || s.State != holdfast.SessionReady {
		return l.SessionService.SuspendSession(ctx, nobody(), in)
	}
	s.State, s.Generation = holdfast.SessionSuspended, s.Generation+1
	return s, nil
}

// slacker keeps the request ids of every other submit alone.
type slacker struct {
	holdfast.TaskService
	submits *atomic.Int64
}

func (l slacker) SubmitTask(ctx context.Context, _ holdfast.Caller, in holdfast.SubmitTask) (holdfast.Task, error) {
	if n := l.submits.Add(1); n%2 == 0 {
		in.RequestID = fmt.Sprintf("%s-again-%d", in.RequestID, n)
	}
	return l.TaskService.SubmitTask(ctx, nobody(), in)
}

// Servers that lie are found out, each within a few histories; the honest one is
// in TestProveHistoriesHaveAnOrder. contract: A1, A3, A5, A11, A14
func TestHistoriesOfServersThatLieAreRejected(t *testing.T) {
	c := onSQLite(t, 7)
	var background sync.WaitGroup
	defer background.Wait()
	base := liar{c.servers[0].Sandboxes, &background}
	liars := []struct {
		name string
		api  rpc.Services
	}{
		{"answers before it is done", rpc.Services{Sandboxes: early{base}}},
		{"reads from a cache", rpc.Services{Sandboxes: stale{base, new(sync.Mutex), map[holdfast.SandboxID]kept{}}}},
		{"forgets request ids", rpc.Services{Sandboxes: forgetful{base, new(atomic.Int64)}}},
		{"does not delete", rpc.Services{Sandboxes: idle{base, Delete}}},
		{"does not extend", rpc.Services{Sandboxes: idle{base, Extend}}},
		{"evicts what was extended", rpc.Services{Sandboxes: killer{base}}},
		{"does not suspend sessions", rpc.Services{Sandboxes: base, Sessions: dreamer{c.servers[0].Sessions}}},
		{"forgets the request ids of tasks", rpc.Services{Sandboxes: base, Tasks: slacker{c.servers[0].Tasks, new(atomic.Int64)}}},
		{"starts twice", rpc.Services{Sandboxes: base, Processes: restarter{c.servers[0].Processes, new(atomic.Int64)}}},
	}
	const most = 6
	for i, l := range liars {
		if l.api.Processes == nil {
			l.api.Processes = c.servers[0].Processes
		}
		if l.api.Sessions == nil {
			l.api.Sessions = c.servers[0].Sessions
		}
		if l.api.Tasks == nil {
			l.api.Tasks = c.servers[0].Tasks
		}
		needed := 0
		for n := 1; n <= most && needed == 0; n++ {
			load := usual(uint64(1000*i+n), c)
			load.Name, load.Servers, load.Pace = fmt.Sprintf("liar%d-%d", i, n), []rpc.Services{l.api}, 5*time.Millisecond
			calls, err := load.Run(t.Context())
			if v := Check(calls, retention, decideFor); v.Decided && !v.OK {
				needed = n
			} else if err != nil {
				t.Logf("%s: the census noticed what no history shows: %v", l.name, err) // found out too, yet not by the order of calls
			}
		}
		if needed == 0 {
			t.Errorf("a server that %s was believed in %d histories", l.name, most)
		}
		t.Logf("a server that %s: rejected by history %d", l.name, needed)
	}
	prove.Report(t, prove.Figure{Rung: 6, Name: "lying servers rejected", Value: int64(len(liars)), Goal: int64(len(liars))})
}
