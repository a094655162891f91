package clienttest

import (
	"cmp"
	"context"
	"slices"

	"github.com/holdfast-dev/holdfast"
)

// CreateSession makes a READY session on a sandbox of its own, once for each request id.
func (f *Fake) CreateSession(ctx context.Context, caller holdfast.Caller, in holdfast.CreateSession) (out holdfast.Session, err error) {
	if err := in.Validate(); err != nil {
		return out, err
	}
	err = f.do(ctx, Call{"CreateSession", in}, func() error {
		if id, ok := f.sessionRequest[in.RequestID]; ok {
			out = *f.sessions[id]
			return nil
		}
		now := f.now()
		s := &holdfast.Session{ID: holdfast.SessionID(f.ids.New(holdfast.PrefixSession)), Name: in.Name, Project: caller.Project, Creator: caller.Name,
			Environment: in.Environment, Source: in.Source, State: holdfast.SessionReady, Generation: 1, Incarnation: 1, Restart: in.Restart,
			Env: in.Env, Labels: in.Labels, Repository: in.Repository, Idle: in.Idle, ActiveAt: now, CreatedAt: now, UpdatedAt: now}
		box := &holdfast.Sandbox{ID: holdfast.SandboxID(f.ids.New(holdfast.PrefixSandbox)), Project: caller.Project, Environment: in.Environment,
			State: holdfast.SandboxReady, Generation: 1, Incarnation: 1, Owner: string(s.ID), CreatedAt: now, UpdatedAt: now}
		s.Sandbox = box.ID
		f.sandboxes[box.ID] = box
		f.sessions[s.ID], f.sessionRequest[in.RequestID] = s, s.ID
		out = *s
		return nil
	})
	return out, err
}

// withSession runs a call on one session's record.
func (f *Fake) withSession(ctx context.Context, call Call, id holdfast.SessionID, change func(*holdfast.Session)) (out holdfast.Session, err error) {
	err = f.do(ctx, call, func() error {
		s, ok := f.sessions[id]
		if !ok {
			return unknown("session", string(id))
		}
		change(s)
		out = *s
		return nil
	})
	return out, err
}

// GetSession reads a record.
func (f *Fake) GetSession(ctx context.Context, _ holdfast.Caller, id holdfast.SessionID) (holdfast.Session, error) {
	return f.withSession(ctx, Call{"GetSession", id}, id, func(*holdfast.Session) {})
}

// SuspendSession suspends at once.
func (f *Fake) SuspendSession(ctx context.Context, _ holdfast.Caller, in holdfast.MutateSession) (holdfast.Session, error) {
	return f.withSession(ctx, Call{"SuspendSession", in}, in.ID, func(s *holdfast.Session) { s.State = holdfast.SessionSuspended })
}

// ResumeSession resumes at once.
func (f *Fake) ResumeSession(ctx context.Context, _ holdfast.Caller, in holdfast.MutateSession) (holdfast.Session, error) {
	return f.withSession(ctx, Call{"ResumeSession", in}, in.ID, func(s *holdfast.Session) { s.State = holdfast.SessionReady })
}

// DeleteSession deletes a record, which stays as a tombstone.
func (f *Fake) DeleteSession(ctx context.Context, _ holdfast.Caller, in holdfast.MutateSession) (holdfast.Session, error) {
	return f.withSession(ctx, Call{"DeleteSession", in}, in.ID, func(s *holdfast.Session) {
		s.State, s.DeletedAt = holdfast.SessionDeleted, f.now()
	})
}

// RenameSession sets the name.
func (f *Fake) RenameSession(ctx context.Context, _ holdfast.Caller, in holdfast.RenameSession) (holdfast.Session, error) {
	return f.withSession(ctx, Call{"RenameSession", in}, in.ID, func(s *holdfast.Session) { s.Name = in.Name })
}

// ListSessions lists all that are not deleted, or in the states asked for, on one page.
func (f *Fake) ListSessions(ctx context.Context, _ holdfast.Caller, in holdfast.ListSessions) (out holdfast.SessionPage, err error) {
	if err := in.Validate(); err != nil {
		return out, err
	}
	err = f.do(ctx, Call{"ListSessions", in}, func() error {
		for _, s := range f.sessions {
			if slices.Contains(in.States, s.State) || len(in.States) == 0 && s.State != holdfast.SessionDeleted {
				out.Sessions = append(out.Sessions, *s)
			}
		}
		slices.SortFunc(out.Sessions, func(a, b holdfast.Session) int { return cmp.Compare(b.ID, a.ID) })
		return nil
	})
	return out, err
}
