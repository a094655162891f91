package fleet

import (
	"context"
	"sync"
	"time"

	"github.com/holdfast-dev/holdfast"
)

const (
	hungAfter = 3               // calls in a row that hang
	hungTry   = 2 * time.Second // between calls to a host that hangs
)

// hung remembers the hosts that take calls and do not answer. Each such call keeps
// its caller for many seconds, and a backlog with thousands of rows on one such host
// would keep those of all the others from being worked off (trap T30). It is a hint
// in memory: what it refuses is repeated, as if the host had been silent.
type hung struct {
	long time.Duration // a call that nobody answered for so long, beyond its wait, hangs

	mu    sync.Mutex
	hosts map[string]hanging // by URL
}

// hanging is what is remembered of one host; the zero value of one that answers.
type hanging struct {
	calls int       // that hung, in a row
	next  time.Time // when the next call may be made, once it counts as hung
}

// admit decides whether a call may be made now, and what is remembered if so. It is pure.
func (h hanging) admit(now time.Time) (hanging, bool) {
	if h.calls < hungAfter {
		return h, true
	}
	if now.Before(h.next) {
		return h, false
	}
	h.next = now.Add(hungTry)
	return h, true
}

// guard is the host's service, refusing at once what would hang.
func (h *hung) guard(url string, host holdfast.HostService) holdfast.HostService {
	return guarded{HostService: host, hung: h, url: url}
}

func (h *hung) admit(url string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	was, known := h.hosts[url]
	if !known {
		return nil
	}
	is, ok := was.admit(time.Now())
	h.hosts[url] = is
	if !ok {
		return holdfast.E(holdfast.Unavailable, holdfast.ReasonUnreachable,
			"it takes calls and has not answered the last %d; it is asked again every %s", was.calls, hungTry)
	}
	return nil
}

// note remembers how a call ended that began a while ago and was to wait so long.
func (h *hung) note(ctx context.Context, url string, err error, began time.Time, wait time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	was, known := h.hosts[url]
	switch {
	case err == nil || answers(err):
		if known {
			delete(h.hosts, url)
		}
	case ctx.Err() != nil && time.Since(began) >= wait+h.long:
		if was.calls++; h.hosts == nil {
			h.hosts = map[string]hanging{}
		}
		h.hosts[url] = was
	}
}

// guarded asks and tells a host that does not hang. Its list is always asked for:
// that is how a silent host is looked at.
type guarded struct {
	holdfast.HostService
	hung *hung
	url  string
}

func (g guarded) EnsureInstance(ctx context.Context, l holdfast.Level) (holdfast.Observation, error) {
	if err := g.hung.admit(g.url); err != nil {
		return holdfast.Observation{}, err
	}
	began := time.Now()
	o, err := g.HostService.EnsureInstance(ctx, l)
	g.hung.note(ctx, g.url, err, began, l.Wait)
	return o, err
}

func (g guarded) EnsureCheckpoint(ctx context.Context, l holdfast.CheckpointLevel) (holdfast.CheckpointObservation, error) {
	if err := g.hung.admit(g.url); err != nil {
		return holdfast.CheckpointObservation{}, err
	}
	began := time.Now()
	o, err := g.HostService.EnsureCheckpoint(ctx, l)
	g.hung.note(ctx, g.url, err, began, l.Wait)
	return o, err
}

func (g guarded) GetInstance(ctx context.Context, id holdfast.InstanceID) (holdfast.Observation, error) {
	if err := g.hung.admit(g.url); err != nil {
		return holdfast.Observation{}, err
	}
	began := time.Now()
	o, err := g.HostService.GetInstance(ctx, id)
	g.hung.note(ctx, g.url, err, began, 0)
	return o, err
}

func (g guarded) ListInstances(ctx context.Context) ([]holdfast.Observation, error) {
	began := time.Now()
	list, err := g.HostService.ListInstances(ctx)
	g.hung.note(ctx, g.url, err, began, 0)
	return list, err
}
