package orchestrator

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/holdfast-dev/holdfast"
)

const (
	reachAge     = 2 * time.Second        // how old the answer may be that a reader is shown
	reachPatient = 250 * time.Millisecond // how long a reader waits for a fresh one
	reachTimeout = 5 * time.Second        // for all pages of one
	reachMost    = 100_000                // instances kept; what is beyond shows no silence
)

// reach remembers which instances' hosts do not answer, as the fleet said a
// moment ago (contract: C5). Readers share one question (contract: D2), and one
// that nobody answers leaves what was known.
type reach struct {
	ask   func(context.Context, holdfast.FindInstances) (holdfast.InstancePage, error) // nil: nothing is known
	clock func() time.Time
	log   *slog.Logger

	mu      sync.Mutex
	at      time.Time     // when what is known was asked for
	pending chan struct{} // closed when the question in progress has ended; nil: none is
	silent  map[holdfast.InstanceID]bool
}

// has reports whether the instance's host was last known not to answer.
func (r *reach) has(id holdfast.InstanceID) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.silent[id]
}

// refresh asks again what is too old, in the background, and waits for it a little.
func (r *reach) refresh(ctx context.Context, spawn func(func(context.Context))) {
	if r.ask == nil {
		return
	}
	r.mu.Lock()
	pending := r.pending
	if pending == nil {
		if age := r.clock().Sub(r.at); !r.at.IsZero() && age >= 0 && age < reachAge {
			r.mu.Unlock()
			return
		}
		pending = make(chan struct{})
		r.pending, r.at = pending, r.clock()
		spawn(func(ctx context.Context) { r.renew(ctx, pending) })
	}
	r.mu.Unlock()
	patience := time.NewTimer(reachPatient)
	defer patience.Stop()
	select {
	case <-pending:
	case <-patience.C:
	case <-ctx.Done():
	}
}

func (r *reach) renew(ctx context.Context, pending chan struct{}) {
	silent, err := r.all(ctx)
	r.mu.Lock()
	defer r.mu.Unlock()
	if err == nil {
		r.silent = silent
	} else if ctx.Err() == nil {
		r.log.WarnContext(ctx, "which hosts answer is not known; what was known is shown", "error", err)
	}
	r.pending = nil
	close(pending)
}

// all reads every page; mostly there is one, and it is empty.
func (r *reach) all(ctx context.Context) (map[holdfast.InstanceID]bool, error) {
	ctx, cancel := context.WithTimeout(ctx, reachTimeout)
	defer cancel()
	silent := map[holdfast.InstanceID]bool{}
	in := holdfast.FindInstances{Unreachable: true, Limit: holdfast.MaxPageSize}
	for len(silent) < reachMost {
		page, err := r.ask(ctx, in)
		if err != nil {
			return nil, fmt.Errorf("ask the fleet: %w", err)
		}
		for _, o := range page.Instances {
			silent[o.Instance] = true
		}
		if in.After = holdfast.InstanceID(page.Next); in.After == "" {
			break
		}
	}
	return silent, nil
}

// refreshReach lets a reader see whose hosts answer. It ends with the service.
func (s *Service) refreshReach(ctx context.Context) {
	s.reach.refresh(ctx, func(work func(context.Context)) {
		s.background.Go(func() { work(s.ctx) })
	})
}

// unreachable reports whether a sandbox's host does not answer, where that matters.
func (s *Service) unreachable(r row) bool {
	switch r.State {
	case holdfast.SandboxCreating, holdfast.SandboxReady, holdfast.SandboxSuspended, holdfast.SandboxDeleting:
		return s.reach.has(r.Instance)
	}
	return false
}
