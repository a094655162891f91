package clienttest

import (
	"context"
	"maps"
	"reflect"
	"slices"
	"strconv"

	"github.com/holdfast-dev/holdfast"
)

// Add puts a sandbox in a state among the records and returns it.
func (f *Fake) Add(state holdfast.SandboxState) holdfast.Sandbox {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := f.now()
	s := &holdfast.Sandbox{
		ID: holdfast.SandboxID(f.ids.New(holdfast.PrefixSandbox)), Project: holdfast.ProjectDefault, Environment: "base", Creator: "test",
		State: state, Generation: 1, Incarnation: 1, CreatedAt: now, UpdatedAt: now, TTL: holdfast.DefaultTTL,
	}
	f.sandboxes[s.ID] = s
	return *s
}

// Change changes the record of a sandbox.
func (f *Fake) Change(id holdfast.SandboxID, change func(*holdfast.Sandbox)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change(f.sandboxes[id])
	f.broadcast()
}

// CreateSandbox makes a READY sandbox, once for each request id.
func (f *Fake) CreateSandbox(ctx context.Context, caller holdfast.Caller, in holdfast.CreateSandbox) (out holdfast.Sandbox, err error) {
	if err := in.Validate(); err != nil {
		return out, err
	}
	err = f.do(ctx, Call{"CreateSandbox", in}, func() error {
		if before, ok := f.requests[in.RequestID]; ok {
			if !reflect.DeepEqual(before, in) {
				return holdfast.E(holdfast.AlreadyExists, holdfast.ReasonRequestReused, "request id %q was used with other input", in.RequestID)
			}
			out = *f.sandboxes[f.created[in.RequestID]]
			return nil
		}
		now := f.now()
		onExpiry := in.OnExpiry
		if onExpiry == "" {
			onExpiry = holdfast.ExpiryDelete
		}
		s := &holdfast.Sandbox{
			ID: holdfast.SandboxID(f.ids.New(holdfast.PrefixSandbox)), Name: in.Name, Restart: in.Restart, Project: caller.Project, Creator: caller.Name,
			Environment: in.Environment, Source: in.Source, State: holdfast.SandboxReady, Generation: 1, Incarnation: 1, Env: in.Env, Labels: in.Labels,
			Resources: in.Resources.WithDefaults(), Egress: holdfast.EgressInternet, TTL: in.TTL, OnExpiry: onExpiry,
			CreatedAt: now, UpdatedAt: now, ReadyAt: now, ExpiresAt: now.Add(max(in.TTL, holdfast.MinTTL)),
		}
		f.requests[in.RequestID], f.created[in.RequestID], f.sandboxes[s.ID] = in, s.ID, s
		f.record(s, holdfast.OperationCreate)
		out = *s
		return nil
	})
	return out, err
}

func (f *Fake) record(s *holdfast.Sandbox, kind holdfast.OperationKind) {
	now := f.now()
	f.journal = append(f.journal, holdfast.Operation{
		ID: holdfast.OperationID(f.ids.New(holdfast.PrefixOperation)), Resource: string(s.ID), Kind: kind, State: holdfast.OperationDone,
		Generation: s.Generation, Attempts: 1, Since: now, UpdatedAt: now, FinishedAt: now,
	})
}

// GetSandbox reads a record.
func (f *Fake) GetSandbox(ctx context.Context, _ holdfast.Caller, id holdfast.SandboxID) (out holdfast.Sandbox, err error) {
	err = f.do(ctx, Call{"GetSandbox", id}, func() error {
		s, ok := f.sandboxes[id]
		if !ok {
			return unknown("sandbox", string(id))
		}
		out = *s
		return nil
	})
	return out, err
}

// ListSandboxes lists by id, filtered; the page token is the last id.
func (f *Fake) ListSandboxes(ctx context.Context, _ holdfast.Caller, in holdfast.ListSandboxes) (page holdfast.SandboxPage, err error) {
	if err := in.Validate(); err != nil {
		return page, err
	}
	err = f.do(ctx, Call{"ListSandboxes", in}, func() error {
		size := in.PageSize
		if size == 0 {
			size = holdfast.DefaultPageSize
		}
		for _, id := range slices.Sorted(maps.Keys(f.sandboxes)) {
			s := f.sandboxes[id]
			if string(id) <= in.PageToken || len(in.States) > 0 && !slices.Contains(in.States, s.State) || !holds(s.Labels, in.Labels) {
				continue
			}
			if len(page.Sandboxes) == size {
				page.NextPageToken = string(page.Sandboxes[size-1].ID)
				break
			}
			page.Sandboxes = append(page.Sandboxes, *s)
		}
		return nil
	})
	return page, err
}

func holds(labels, wanted map[string]string) bool {
	for key, value := range wanted {
		if got, ok := labels[key]; !ok || got != value {
			return false
		}
	}
	return true
}

// SuspendSandbox makes a READY sandbox SUSPENDED.
func (f *Fake) SuspendSandbox(ctx context.Context, _ holdfast.Caller, in holdfast.MutateSandbox) (holdfast.Sandbox, error) {
	return f.mutate(ctx, Call{"SuspendSandbox", in}, in, holdfast.OperationSuspend, holdfast.SandboxSuspended)
}

// ResumeSandbox makes a SUSPENDED sandbox READY.
func (f *Fake) ResumeSandbox(ctx context.Context, _ holdfast.Caller, in holdfast.MutateSandbox) (holdfast.Sandbox, error) {
	return f.mutate(ctx, Call{"ResumeSandbox", in}, in, holdfast.OperationResume, holdfast.SandboxReady)
}

// DeleteSandbox makes any sandbox DELETED.
func (f *Fake) DeleteSandbox(ctx context.Context, _ holdfast.Caller, in holdfast.MutateSandbox) (holdfast.Sandbox, error) {
	return f.mutate(ctx, Call{"DeleteSandbox", in}, in, holdfast.OperationDelete, holdfast.SandboxDeleted)
}

func (f *Fake) mutate(ctx context.Context, call Call, in holdfast.MutateSandbox, kind holdfast.OperationKind, to holdfast.SandboxState) (out holdfast.Sandbox, err error) {
	err = f.do(ctx, call, func() error {
		s, ok := f.sandboxes[in.ID]
		if !ok {
			return unknown("sandbox", string(in.ID))
		}
		if in.IfGeneration != 0 && in.IfGeneration != s.Generation {
			return holdfast.E(holdfast.FailedPrecondition, holdfast.ReasonGeneration, "generation is %d", s.Generation).On(string(in.ID))
		}
		if s.State != to {
			s.State, s.Generation, s.UpdatedAt = to, s.Generation+1, f.now()
			f.record(s, kind)
		}
		out = *s
		return nil
	})
	return out, err
}

// ExtendSandbox moves a record's end, never to an earlier time.
func (f *Fake) ExtendSandbox(ctx context.Context, _ holdfast.Caller, in holdfast.ExtendSandbox) (out holdfast.Sandbox, err error) {
	return f.live(ctx, Call{"ExtendSandbox", in}, in.ID, func(s *holdfast.Sandbox) {
		if until := f.now().Add(in.TTL); until.After(s.ExpiresAt) {
			s.ExpiresAt = until
		}
	})
}

// SetSandboxLifetime sets a record's lifetime.
func (f *Fake) SetSandboxLifetime(ctx context.Context, _ holdfast.Caller, in holdfast.SetSandboxLifetime) (out holdfast.Sandbox, err error) {
	return f.live(ctx, Call{"SetSandboxLifetime", in}, in.ID, func(s *holdfast.Sandbox) {
		if in.TTL != 0 {
			s.TTL, s.ExpiresAt = in.TTL, f.now().Add(in.TTL)
		}
		if in.OnExpiry != "" {
			s.OnExpiry = in.OnExpiry
		}
	})
}

func (f *Fake) live(ctx context.Context, call Call, id holdfast.SandboxID, change func(*holdfast.Sandbox)) (out holdfast.Sandbox, err error) {
	err = f.do(ctx, call, func() error {
		s, ok := f.sandboxes[id]
		if !ok {
			return unknown("sandbox", string(id))
		}
		if s.State == holdfast.SandboxFailed || s.State == holdfast.SandboxDeleting || s.State == holdfast.SandboxDeleted {
			return holdfast.E(holdfast.FailedPrecondition, holdfast.ReasonExpired, "its lifetime is over").On(string(id))
		}
		change(s)
		out = *s
		return nil
	})
	return out, err
}

// WatchSandboxes yields the records, each again when it differs from what this
// call yielded; the version counts the events of one call.
func (f *Fake) WatchSandboxes(ctx context.Context, _ holdfast.Caller, in holdfast.WatchSandboxes, yield func(holdfast.SandboxEvent) error) error {
	if err := f.do(ctx, Call{"WatchSandboxes", in}, func() error { return nil }); err != nil {
		return err
	}
	seen := map[holdfast.SandboxID]holdfast.Sandbox{}
	for n := 1; ; {
		f.mu.Lock()
		changed := f.changed
		var news []holdfast.Sandbox
		for _, id := range slices.Sorted(maps.Keys(f.sandboxes)) {
			s := *f.sandboxes[id]
			if was, ok := seen[id]; !ok && s.State != holdfast.SandboxDeleted || ok && !reflect.DeepEqual(was, s) {
				seen[id], news = s, append(news, s)
			}
		}
		f.mu.Unlock()
		for _, s := range news {
			if err := yield(holdfast.SandboxEvent{Version: strconv.Itoa(n), Sandbox: &s}); err != nil {
				return err
			}
			n++
		}
		if n == 1 {
			if err := yield(holdfast.SandboxEvent{Version: "0"}); err != nil {
				return err
			}
		}
		if err := f.wait(ctx, changed); err != nil {
			return err
		}
	}
}

// StreamSandboxLog yields the console once.
func (f *Fake) StreamSandboxLog(ctx context.Context, _ holdfast.Caller, in holdfast.SandboxLog, yield func(holdfast.OutputChunk) error) error {
	var data []byte
	err := f.do(ctx, Call{"StreamSandboxLog", in}, func() error {
		if _, ok := f.sandboxes[in.ID]; !ok {
			return unknown("sandbox", string(in.ID))
		}
		data = slices.Clone(f.console[min(int(in.Offset), len(f.console)):])
		return nil
	})
	if err != nil || len(data) == 0 {
		return err
	}
	return yield(holdfast.OutputChunk{Stream: holdfast.Console, Offset: in.Offset, Data: data})
}

// ListOperations lists a sandbox's journal, newest first.
func (f *Fake) ListOperations(ctx context.Context, _ holdfast.Caller, in holdfast.ListOperations) (page holdfast.OperationPage, err error) {
	err = f.do(ctx, Call{"ListOperations", in}, func() error {
		for _, o := range slices.Backward(f.journal) {
			if o.Resource == in.Resource {
				page.Operations = append(page.Operations, o)
			}
		}
		return nil
	})
	return page, err
}

// GetOperation reads one entry of the journal.
func (f *Fake) GetOperation(ctx context.Context, _ holdfast.Caller, id holdfast.OperationID) (out holdfast.Operation, err error) {
	err = f.do(ctx, Call{"GetOperation", id}, func() error {
		for _, o := range f.journal {
			if o.ID == id {
				out = o
				return nil
			}
		}
		return unknown("operation", string(id))
	})
	return out, err
}
