// Package clienttest is a server in memory for the tests of whatever speaks to
// Holdfast through package client: the real wire over loopback, and behind it
// sandboxes, processes and files that are no more than records. Tests make it
// fail, stall and lose answers by its hooks.
package clienttest

import (
	"context"
	"log/slog"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/rpc"
)

// APIKey is the key that the fake's server takes.
const APIKey = "hf_test"

// Call is one call as it arrived.
type Call struct {
	Method string // "CreateSandbox"
	In     any    // the input: a root type, or the id
}

// Fake is the services in memory. Its zero value is not usable: see New.
type Fake struct {
	// Before runs before a call has any effect; its error is the answer.
	Before func(ctx context.Context, call Call) error
	// After runs when a call had its effect; its error is the answer instead.
	After func(ctx context.Context, call Call) error
	// Matrix is the audit.
	Matrix holdfast.AuditMatrix

	mu        sync.Mutex
	changed   chan struct{} // closed at each change, then replaced
	calls     []Call
	ids       holdfast.IDs
	now       func() time.Time
	sandboxes map[holdfast.SandboxID]*holdfast.Sandbox
	requests  map[string]holdfast.CreateSandbox
	created   map[string]holdfast.SandboxID
	journal   []holdfast.Operation
	processes map[holdfast.ProcessID]*process
	files     map[string][]byte
	console   []byte
	hosts     map[holdfast.HostID]*holdfast.Host
	projects  map[string]*holdfast.Project // by name
	keys      map[holdfast.KeyID]*holdfast.Key

	sessions       map[holdfast.SessionID]*holdfast.Session
	sessionRequest map[string]holdfast.SessionID // by request id

	checkpoints map[holdfast.CheckpointID]*holdfast.Checkpoint
	taken       map[string]holdfast.CheckpointID // by request id

	hooked hooked

	environments map[string]*holdfast.Environment // by name
	builds       map[holdfast.BuildID]*holdfast.Build
	buildsOf     map[string]holdfast.BuildID // by request id
}

// New makes a fake without a sandbox. Hooks are set before the first call.
func New() *Fake {
	return &Fake{
		changed:   make(chan struct{}),
		now:       time.Now,
		sandboxes: map[holdfast.SandboxID]*holdfast.Sandbox{},
		requests:  map[string]holdfast.CreateSandbox{},
		created:   map[string]holdfast.SandboxID{},
		processes: map[holdfast.ProcessID]*process{},
		files:     map[string][]byte{},
		hosts:     map[holdfast.HostID]*holdfast.Host{},
		console:   []byte("booted\n"),
		projects:  map[string]*holdfast.Project{"default": project(holdfast.ProjectDefault, "default", holdfast.QuotaChange{}, time.Now())},
		keys:      map[holdfast.KeyID]*holdfast.Key{},

		sessions: map[holdfast.SessionID]*holdfast.Session{}, sessionRequest: map[string]holdfast.SessionID{},

		checkpoints: map[holdfast.CheckpointID]*holdfast.Checkpoint{},
		taken:       map[string]holdfast.CheckpointID{},

		environments: map[string]*holdfast.Environment{},
		builds:       map[holdfast.BuildID]*holdfast.Build{},
		buildsOf:     map[string]holdfast.BuildID{},
	}
}

// Services returns the fake as what a handler serves, or a client is made over.
func (f *Fake) Services() rpc.Services {
	return rpc.Services{Sandboxes: f, Operations: f, Processes: f, Files: f, Audit: f, Fleet: f, Projects: f, Keys: f, Checkpoints: f, Environments: f, Sessions: f,
		Events: f, Webhooks: f, Hooks: f}
}

// Serve serves the fake on loopback until the test ends, and returns its URL.
func (f *Fake) Serve(t testing.TB) string {
	t.Helper()
	handler := rpc.NewHandler(f.Services(), rpc.Options{
		Logger: slog.New(slog.DiscardHandler),
		Authenticate: func(_ context.Context, token string) (holdfast.Caller, error) {
			if token != APIKey {
				return holdfast.Caller{}, holdfast.E(holdfast.NotFound, holdfast.ReasonUnknown, "no such key")
			}
			return holdfast.Caller{Project: holdfast.ProjectDefault, Name: "test", Role: holdfast.RoleAdmin}, nil
		},
	})
	server := httptest.NewUnstartedServer(handler)
	server.Config = rpc.NewServer(handler)
	server.Start()
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	return server.URL
}

// Calls returns the calls that arrived, of one method, or of all for "".
func (f *Fake) Calls(method string) []Call {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []Call
	for _, c := range f.calls {
		if method == "" || c.Method == method {
			out = append(out, c)
		}
	}
	return out
}

// do runs one call between the hooks, with the records locked.
func (f *Fake) do(ctx context.Context, call Call, act func() error) error {
	f.mu.Lock()
	f.calls = append(f.calls, call)
	f.mu.Unlock()
	if f.Before != nil {
		if err := f.Before(ctx, call); err != nil {
			return err
		}
	}
	f.mu.Lock()
	err := act()
	f.broadcast()
	f.mu.Unlock()
	if err == nil && f.After != nil {
		err = f.After(ctx, call)
	}
	return err
}

// broadcast wakes whoever waits for a change; the records are locked.
func (f *Fake) broadcast() {
	close(f.changed)
	f.changed = make(chan struct{})
}

// wait returns at the next change after the records were seen as they are.
func (f *Fake) wait(ctx context.Context, seen <-chan struct{}) error {
	select {
	case <-seen:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func unknown(kind, id string) error {
	return holdfast.E(holdfast.NotFound, holdfast.ReasonUnknown, "no %s %s", kind, id).On(id)
}
