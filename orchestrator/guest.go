package orchestrator

import (
	"context"
	"io"
	"sync"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/store"
)

// hostCache remembers where a boot's host agent was last found. It is a hint: a
// call that finds nobody there asks the fleet again.
type hostCache struct {
	mu   sync.Mutex
	urls map[holdfast.InstanceRef]string
}

// hostCacheSize bounds the cache; past it, it starts anew.
const hostCacheSize = 10_000

func newHostCache() *hostCache { return &hostCache{urls: map[holdfast.InstanceRef]string{}} }

func (c *hostCache) get(ref holdfast.InstanceRef) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.urls[ref]
}

func (c *hostCache) put(ref holdfast.InstanceRef, url string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.urls) >= hostCacheSize {
		clear(c.urls)
	}
	c.urls[ref] = url
}

func (c *hostCache) drop(ref holdfast.InstanceRef) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.urls, ref)
}

// access is which states a guest call works in (contract: A14).
type access int

const (
	accessLive     access = iota // READY only: needs the guest itself
	accessRecorded               // READY, SUSPENDED, FAILED: answered from the host's spool
	accessSpool                  // the same, and CREATING and DELETING while there is an instance
)

func (a access) fits(state holdfast.SandboxState) bool {
	switch state {
	case holdfast.SandboxReady:
		return true
	case holdfast.SandboxSuspended, holdfast.SandboxFailed:
		return a != accessLive
	case holdfast.SandboxCreating, holdfast.SandboxDeleting:
		return a == accessSpool
	}
	return false
}

// guest finds the guest of a sandbox's current boot, never resuming anything.
func (s *Service) guest(ctx context.Context, caller holdfast.Caller, id holdfast.SandboxID, a access) (row, holdfast.Guest, error) {
	r, op, err := s.read(ctx, caller, id)
	if err != nil {
		return row{}, holdfast.Guest{}, err
	}
	if !a.fits(r.State) {
		e := holdfast.E(holdfast.FailedPrecondition, holdfast.ReasonState, "%s is %s: this call needs it to be READY", id, r.State).
			On(string(id)).With("state", string(r.State))
		if r.State == holdfast.SandboxSuspended {
			e.Message += "; resume it first"
		}
		if op != nil {
			e = e.During(op.ID)
		}
		return row{}, holdfast.Guest{}, e
	}
	url := s.config.hostURL(ctx, s.hosts, r.ref())
	if url.err != nil {
		return row{}, holdfast.Guest{}, url.err
	}
	return r, r.withDefaults(s.config.Guest(url.value, r.ref())), nil
}

// withDefaults starts processes where and as whom the environment of a sandbox says,
// where a start does not say it.
func (r row) withDefaults(g holdfast.Guest) holdfast.Guest {
	if r.Workdir != "" || r.User != "" {
		g.Processes = defaulting{g.Processes, r.Workdir, r.User}
	}
	return g
}

// defaulting is a guest's processes with what starts do not say.
type defaulting struct {
	holdfast.GuestProcesses
	workdir, user string
}

// StartProcess fills in what is not said.
func (d defaulting) StartProcess(ctx context.Context, in holdfast.StartProcess) (holdfast.Process, error) {
	if in.Cwd == "" {
		in.Cwd = d.workdir
	}
	if in.User == "" {
		in.User = d.user
	}
	return d.GuestProcesses.StartProcess(ctx, in)
}

type hostAnswer struct {
	value string
	err   error
}

func (c Config) hostURL(ctx context.Context, cache *hostCache, ref holdfast.InstanceRef) hostAnswer {
	if url := cache.get(ref); url != "" {
		return hostAnswer{value: url}
	}
	seen, err := c.Fleet.GetInstance(ctx, ref.Instance)
	switch {
	case holdfast.CodeOf(err) == holdfast.NotFound:
		return hostAnswer{err: holdfast.E(holdfast.Unavailable, holdfast.ReasonInstanceLost, "the instance is not placed on a host yet").Retry(time.Second)}
	case err != nil:
		return hostAnswer{err: err}
	case seen.HostURL == "":
		return hostAnswer{err: holdfast.E(holdfast.Unavailable, holdfast.ReasonHostUnreachable, "the fleet does not know where the instance's host is").Retry(time.Second)}
	}
	cache.put(ref, seen.HostURL)
	return hostAnswer{value: seen.HostURL}
}

// guestCall finds the guest and makes one call. It is never repeated here: what a
// lost answer means is for the caller to decide (contract: A14).
func guestCall[T any](s *Service, ctx context.Context, at guestAddress, call func(holdfast.Guest) (T, error)) (T, error) {
	var none T
	r, g, err := s.guest(ctx, at.caller, at.sandbox, at.access)
	if err != nil {
		return none, err
	}
	if at.incarnation != 0 && r.Incarnation != at.incarnation {
		return none, otherIncarnation(r, at.incarnation)
	}
	if r.Owner != "" && !at.quiet && r.State == holdfast.SandboxReady {
		if at.access == accessLive {
			if err := s.active(ctx, r.Owner); err != nil {
				return none, err
			}
		}
		g = s.livelyGuest(ctx, r.Owner, g)
	}
	out, err := call(g)
	if holdfast.ReasonOf(err) == holdfast.ReasonUnreachable {
		s.hosts.drop(r.ref())
		err = hostSilent(err)
	}
	if e := holdfast.AsError(err); holdfast.CodeOf(err) == holdfast.NotFound && e.Resource == string(r.Instance) {
		// Deleted or moved since the sandbox was read: it is not the sandbox that is unknown.
		s.hosts.drop(r.ref())
		err = holdfast.E(holdfast.Unavailable, holdfast.ReasonInstanceLost, "its instance is no longer on its host: look at the sandbox, then retry").
			Retry(time.Second).Because(err)
	}
	if err != nil {
		return out, holdfast.AsError(err).On(string(at.sandbox))
	}
	return out, nil
}

// hostSilent says that it was the guest's host that did not answer, where it was:
// an error that came from there has no cause any more.
func hostSilent(err error) error {
	own := holdfast.AsError(err)
	if own.Code != holdfast.Unavailable || own.Unwrap() == nil {
		return err
	}
	return holdfast.E(holdfast.Unavailable, holdfast.ReasonHostUnreachable, "its host does not answer; what was asked may have happened").
		Retry(time.Second).Because(err)
}

// guestAddress is who wants to reach which guest, and in which states that works.
type guestAddress struct {
	caller  holdfast.Caller
	sandbox holdfast.SandboxID
	access  access
	// incarnation is the boot that the call is meant for; 0: the current one.
	incarnation int64
	// quiet is no activity: the orchestrator itself asks.
	quiet bool
}

type nothing struct{}

func noAnswer(err error) (nothing, error) { return nothing{}, err }

// StartProcess starts a command, once for a request id.
func (s *Service) StartProcess(ctx context.Context, caller holdfast.Caller, sandbox holdfast.SandboxID, in holdfast.StartProcess) (holdfast.Process, error) {
	if err := in.Validate(); err != nil {
		return holdfast.Process{}, err
	}
	at := guestAddress{caller: caller, sandbox: sandbox, access: accessLive}
	if in.RequestID != "" {
		var err error
		if at.incarnation, err = s.firstUse(ctx, caller, sandbox, in.RequestID); err != nil {
			return holdfast.Process{}, err
		}
	}
	return guestCall(s, ctx, at, func(g holdfast.Guest) (holdfast.Process, error) {
		return g.Processes.StartProcess(ctx, in)
	})
}

// firstUse returns the incarnation on which a request id starts its process.
func (s *Service) firstUse(ctx context.Context, caller holdfast.Caller, sandbox holdfast.SandboxID, requestID string) (incarnation int64, err error) {
	if _, _, err := s.guest(ctx, caller, sandbox, accessLive); err != nil {
		return 0, err
	}
	err = s.update(ctx, "process request", func(tx store.Tx, _ time.Time) error {
		r, found, now, err := lockRow(ctx, tx, sandbox)
		if err != nil {
			return err
		}
		if !found || r.Project != caller.Project {
			return notFound(sandbox)
		}
		incarnation = r.Incarnation
		return claimProcessRequest(ctx, tx, now, r, requestID)
	})
	return incarnation, err
}

func otherIncarnation(r row, want int64) error {
	return holdfast.E(holdfast.FailedPrecondition, holdfast.ReasonIncarnation,
		"%s was replaced meanwhile: incarnation %d is gone, this is %d", r.ID, want, r.Incarnation).On(string(r.ID))
}

// GetProcess works in READY, SUSPENDED and FAILED.
func (s *Service) GetProcess(ctx context.Context, caller holdfast.Caller, sandbox holdfast.SandboxID, id holdfast.ProcessID) (holdfast.Process, error) {
	if err := holdfast.CheckID("process_id", holdfast.PrefixProcess, string(id)); err != nil {
		return holdfast.Process{}, err
	}
	return guestCall(s, ctx, guestAddress{caller: caller, sandbox: sandbox, access: accessRecorded}, func(g holdfast.Guest) (holdfast.Process, error) {
		return g.Processes.GetProcess(ctx, id)
	})
}

// ListProcesses works in READY, SUSPENDED and FAILED.
func (s *Service) ListProcesses(ctx context.Context, caller holdfast.Caller, sandbox holdfast.SandboxID) ([]holdfast.Process, error) {
	return guestCall(s, ctx, guestAddress{caller: caller, sandbox: sandbox, access: accessRecorded}, func(g holdfast.Guest) ([]holdfast.Process, error) {
		return g.Processes.ListProcesses(ctx)
	})
}

// StreamProcessOutput works in READY, SUSPENDED and FAILED.
func (s *Service) StreamProcessOutput(ctx context.Context, caller holdfast.Caller, sandbox holdfast.SandboxID, in holdfast.ReadOutput, yield func(holdfast.OutputChunk) error) (holdfast.Process, error) {
	if err := in.Validate(); err != nil {
		return holdfast.Process{}, err
	}
	return guestCall(s, ctx, guestAddress{caller: caller, sandbox: sandbox, access: accessRecorded}, func(g holdfast.Guest) (holdfast.Process, error) {
		return g.Processes.StreamProcessOutput(ctx, in, yield)
	})
}

// WriteProcessInput returns the offset behind what was taken.
func (s *Service) WriteProcessInput(ctx context.Context, caller holdfast.Caller, sandbox holdfast.SandboxID, in holdfast.ProcessInput) (int64, error) {
	if err := in.Validate(); err != nil {
		return 0, err
	}
	return guestCall(s, ctx, guestAddress{caller: caller, sandbox: sandbox, access: accessLive}, func(g holdfast.Guest) (int64, error) {
		return g.Processes.WriteProcessInput(ctx, in)
	})
}

// SignalProcess signals the process's group.
func (s *Service) SignalProcess(ctx context.Context, caller holdfast.Caller, sandbox holdfast.SandboxID, id holdfast.ProcessID, signal string) error {
	if err := holdfast.CheckID("process_id", holdfast.PrefixProcess, string(id)); err != nil {
		return err
	}
	_, err := guestCall(s, ctx, guestAddress{caller: caller, sandbox: sandbox, access: accessLive}, func(g holdfast.Guest) (nothing, error) {
		return noAnswer(g.Processes.SignalProcess(ctx, id, signal))
	})
	return err
}

// ResizeTerminal tells the process's terminal its size.
func (s *Service) ResizeTerminal(ctx context.Context, caller holdfast.Caller, sandbox holdfast.SandboxID, id holdfast.ProcessID, size holdfast.TerminalSize) error {
	if err := holdfast.CheckID("process_id", holdfast.PrefixProcess, string(id)); err != nil {
		return err
	}
	_, err := guestCall(s, ctx, guestAddress{caller: caller, sandbox: sandbox, access: accessLive}, func(g holdfast.Guest) (nothing, error) {
		return noAnswer(g.Processes.ResizeTerminal(ctx, id, size))
	})
	return err
}

// StreamSandboxLog yields the console, CREATING included.
func (s *Service) StreamSandboxLog(ctx context.Context, caller holdfast.Caller, in holdfast.SandboxLog, yield func(holdfast.OutputChunk) error) error {
	if err := in.Validate(); err != nil {
		return err
	}
	_, err := guestCall(s, ctx, guestAddress{caller: caller, sandbox: in.ID, access: accessSpool}, func(g holdfast.Guest) (nothing, error) {
		return noAnswer(g.Log(ctx, in.Offset, in.Follow, yield))
	})
	return err
}

type fileRead struct {
	info holdfast.FileInfo
	body io.ReadCloser
}

// ReadFile opens a file of the guest; the reader must be closed.
func (s *Service) ReadFile(ctx context.Context, caller holdfast.Caller, sandbox holdfast.SandboxID, in holdfast.ReadFile) (holdfast.FileInfo, io.ReadCloser, error) {
	if err := in.Validate(); err != nil {
		return holdfast.FileInfo{}, nil, err
	}
	out, err := guestCall(s, ctx, guestAddress{caller: caller, sandbox: sandbox, access: accessLive}, func(g holdfast.Guest) (fileRead, error) {
		info, body, err := g.Files.ReadFile(ctx, in)
		return fileRead{info, body}, err
	})
	return out.info, out.body, err
}

// WriteFile replaces atomically unless it appends.
func (s *Service) WriteFile(ctx context.Context, caller holdfast.Caller, sandbox holdfast.SandboxID, in holdfast.WriteFile, content io.Reader) (holdfast.FileWritten, error) {
	if err := in.Validate(); err != nil {
		return holdfast.FileWritten{}, err
	}
	return guestCall(s, ctx, guestAddress{caller: caller, sandbox: sandbox, access: accessLive}, func(g holdfast.Guest) (holdfast.FileWritten, error) {
		return g.Files.WriteFile(ctx, in, content)
	})
}

// StatFile describes a path, not following a symbolic link.
func (s *Service) StatFile(ctx context.Context, caller holdfast.Caller, sandbox holdfast.SandboxID, path string) (holdfast.FileInfo, error) {
	if err := holdfast.CheckPath("path", path); err != nil {
		return holdfast.FileInfo{}, err
	}
	return guestCall(s, ctx, guestAddress{caller: caller, sandbox: sandbox, access: accessLive}, func(g holdfast.Guest) (holdfast.FileInfo, error) {
		return g.Files.StatFile(ctx, path)
	})
}

// ListDirectory lists a directory's entries by name.
func (s *Service) ListDirectory(ctx context.Context, caller holdfast.Caller, sandbox holdfast.SandboxID, path string) ([]holdfast.FileInfo, error) {
	if err := holdfast.CheckPath("path", path); err != nil {
		return nil, err
	}
	return guestCall(s, ctx, guestAddress{caller: caller, sandbox: sandbox, access: accessLive}, func(g holdfast.Guest) ([]holdfast.FileInfo, error) {
		return g.Files.ListDirectory(ctx, path)
	})
}

// MakeDirectory makes a directory and its missing parents.
func (s *Service) MakeDirectory(ctx context.Context, caller holdfast.Caller, sandbox holdfast.SandboxID, path string, mode uint32) (holdfast.FileInfo, error) {
	if err := holdfast.CheckPath("path", path); err != nil {
		return holdfast.FileInfo{}, err
	}
	return guestCall(s, ctx, guestAddress{caller: caller, sandbox: sandbox, access: accessLive}, func(g holdfast.Guest) (holdfast.FileInfo, error) {
		return g.Files.MakeDirectory(ctx, path, mode)
	})
}

// MoveFile renames within the guest.
func (s *Service) MoveFile(ctx context.Context, caller holdfast.Caller, sandbox holdfast.SandboxID, from, to string) (holdfast.FileInfo, error) {
	if err := holdfast.CheckPath("from", from); err != nil {
		return holdfast.FileInfo{}, err
	}
	if err := holdfast.CheckPath("to", to); err != nil {
		return holdfast.FileInfo{}, err
	}
	return guestCall(s, ctx, guestAddress{caller: caller, sandbox: sandbox, access: accessLive}, func(g holdfast.Guest) (holdfast.FileInfo, error) {
		return g.Files.MoveFile(ctx, from, to)
	})
}

// RemoveFile removes a path, and with recursive what is under it.
func (s *Service) RemoveFile(ctx context.Context, caller holdfast.Caller, sandbox holdfast.SandboxID, path string, recursive bool) error {
	if err := holdfast.CheckPath("path", path); err != nil {
		return err
	}
	_, err := guestCall(s, ctx, guestAddress{caller: caller, sandbox: sandbox, access: accessLive}, func(g holdfast.Guest) (nothing, error) {
		return noAnswer(g.Files.RemoveFile(ctx, path, recursive))
	})
	return err
}

// WatchDirectory yields events until ctx ends.
func (s *Service) WatchDirectory(ctx context.Context, caller holdfast.Caller, sandbox holdfast.SandboxID, in holdfast.WatchDirectory, yield func(holdfast.FileEvent) error) error {
	if err := holdfast.CheckPath("path", in.Path); err != nil {
		return err
	}
	_, err := guestCall(s, ctx, guestAddress{caller: caller, sandbox: sandbox, access: accessLive}, func(g holdfast.Guest) (nothing, error) {
		return noAnswer(g.Files.WatchDirectory(ctx, in, yield))
	})
	return err
}
