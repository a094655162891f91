package guestagent

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/spool"
)

// What is kept of processes that have ended: the newest KeptProcesses, and of
// their output the newest KeptOutput bytes. The processes that their request
// ids started are known for the newest KeptRequests of them.
const (
	KeptProcesses = 1024
	KeptOutput    = 1 << 30
	KeptRequests  = 1 << 16
)

// maxRunning is below what a spool's List shows, with those that have ended.
const maxRunning = spool.MaxProcesses - KeptProcesses

// processes is the processes of this boot: holdfast.GuestProcesses.
type processes struct {
	boot     holdfast.GuestConfig
	executor Executor
	files    *fileSystem
	clock    func() time.Time
	ids      holdfast.IDs
	log      *slog.Logger
	ready    func() error                                // nil once processes can be started
	report   func(holdfast.ReportKind, holdfast.Process) // s.mu is held: it only begins to
	closing  chan struct{}                               // closed when the instance ends

	writer *spool.Writer
	reader *spool.Reader

	mu       sync.Mutex
	byID     map[holdfast.ProcessID]*process
	requests map[string]*request
	ended    []*process // oldest first
	settled  []string   // request ids whose process ended, oldest first
	running  int
	closed   bool
	awaiting sync.WaitGroup
}

// process is one of them.
type process struct {
	child  Child
	log    *spool.Log
	input  input
	report holdfast.ReportKind

	mu     sync.Mutex
	record holdfast.Process
}

// now is the process as it is.
func (p *process) now() holdfast.Process {
	p.mu.Lock()
	defer p.mu.Unlock()
	record := p.record
	record.StdoutSize = p.log.Stream(holdfast.Stdout).Size()
	record.StderrSize = p.log.Stream(holdfast.Stderr).Size()
	return record
}

// request is a start that has a request id (contract: A14).
type request struct {
	fields map[string][sha256.Size]byte // of the input, to tell another one
	done   chan struct{}                // process or err is set
	proc   *process
	err    error
}

// StartProcess starts once per request id and boot; repeats, also concurrent
// ones, get the process of the first. contract: A14, trap T45
func (s *processes) StartProcess(ctx context.Context, in holdfast.StartProcess) (holdfast.Process, error) {
	if err := in.Validate(); err != nil {
		return holdfast.Process{}, err
	}
	if err := s.ready(); err != nil {
		return holdfast.Process{}, err
	}
	if in.RequestID == "" {
		p, err := s.begin(in)
		if err != nil {
			return holdfast.Process{}, err
		}
		return p.now(), nil
	}
	r, mine, err := s.claim(in)
	if err != nil {
		return holdfast.Process{}, err
	}
	if mine {
		s.settle(in.RequestID, r)(s.begin(in))
	}
	select {
	case <-r.done:
	case <-ctx.Done():
		return holdfast.Process{}, holdfast.AsError(ctx.Err())
	}
	if r.err != nil {
		return holdfast.Process{}, r.err
	}
	return r.proc.now(), nil
}

// claim finds the request of that id, or makes it, which the caller then settles.
func (s *processes) claim(in holdfast.StartProcess) (r *request, mine bool, err error) {
	fields, err := fingerprint(in)
	if err != nil {
		return nil, false, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	r, known := s.requests[in.RequestID]
	if !known {
		r = &request{fields: fields, done: make(chan struct{})}
		s.requests[in.RequestID] = r
		return r, true, nil
	}
	var differ []string
	for name, sum := range fields {
		if r.fields[name] != sum {
			differ = append(differ, name)
		}
	}
	if len(differ) == 0 {
		return r, false, nil
	}
	slices.Sort(differ)
	names := strings.Join(differ, ",")
	return nil, false, holdfast.E(holdfast.AlreadyExists, holdfast.ReasonRequestReused,
		"request id %q was used with another %s; use a new one for another process", in.RequestID, names).With("fields", names)
}

// settle ends a claim. A start that failed started nothing, so that its request
// id is free again.
func (s *processes) settle(id string, r *request) func(*process, error) {
	return func(p *process, err error) {
		r.proc, r.err = p, err
		if err != nil {
			s.mu.Lock()
			delete(s.requests, id)
			s.mu.Unlock()
		}
		close(r.done)
	}
}

// fingerprint hashes each field of the input but the request id.
func fingerprint(in holdfast.StartProcess) (map[string][sha256.Size]byte, error) {
	fields := map[string][sha256.Size]byte{}
	for name, value := range map[string]any{
		"command": in.Command, "args": append([]string{}, in.Args...), "cwd": in.Cwd,
		"env": in.Env, "terminal": in.Terminal, "stdin": in.Stdin, "report": in.Report, "user": in.User,
	} {
		raw, err := json.Marshal(value)
		if err != nil {
			return nil, fmt.Errorf("fingerprint %s: %w", name, err)
		}
		if name == "env" && len(in.Env) == 0 {
			raw = nil
		}
		fields[name] = sha256.Sum256(raw)
	}
	return fields, nil
}

// begin starts a process. Its record is on disk before it runs.
func (s *processes) begin(in holdfast.StartProcess) (*process, error) {
	p := &process{report: in.Report, record: holdfast.Process{
		ID:          holdfast.ProcessID(s.ids.New(holdfast.PrefixProcess)),
		RequestID:   in.RequestID,
		Incarnation: s.boot.Incarnation,
		Command:     in.Command,
		Args:        in.Args,
		Cwd:         in.Cwd,
		Env:         in.Env,
		Terminal:    in.Terminal != nil,
		State:       holdfast.ProcessRunning,
		StartedAt:   s.clock().UTC(),
	}}
	cmd, err := s.command(in)
	if err != nil {
		return nil, err
	}
	p.record.Cwd = cmd.Dir
	if err := s.enter(); err != nil {
		return nil, err
	}
	if p.log, err = s.writer.Begin(p.record); err != nil {
		s.leave()
		return nil, spoolError(err)
	}
	cmd.Stdout = &lossy{to: p.log.Stream(holdfast.Stdout), log: s.log.With("process", p.record.ID)}
	cmd.Stderr = &lossy{to: p.log.Stream(holdfast.Stderr), log: s.log.With("process", p.record.ID)}
	if p.child, err = s.executor.Start(cmd); err != nil {
		s.leave()
		if rm := s.writer.Remove(p.record.ID); rm != nil {
			s.log.Error("a start that failed leaves its record", "process", p.record.ID, "error", rm)
		}
		return nil, err
	}
	p.input.init(p.child, in.Stdin || in.Terminal != nil)
	p.record.PID = p.child.PID()
	if err := p.log.Record(p.record); err != nil {
		// It runs and is recorded, only without its number.
		s.log.Warn("the process's number is not recorded", "process", p.record.ID, "error", err)
	}
	s.mu.Lock()
	s.byID[p.record.ID] = p
	s.mu.Unlock()
	go s.await(p)
	return p, nil
}

// enter and leave count what runs.
func (s *processes) enter() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return startError(Command{}, "", errClosing)
	}
	if s.running >= maxRunning {
		return holdfast.E(holdfast.ResourceExhausted, holdfast.ReasonTooLarge, "%d processes run already; end some first", s.running)
	}
	s.running++
	s.awaiting.Add(1)
	return nil
}

func (s *processes) leave() {
	s.mu.Lock()
	s.running--
	s.mu.Unlock()
	s.awaiting.Done()
}

// shut lets nothing more start, and reports whether it was the first to do so.
func (s *processes) shut() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	first := !s.closed
	if first {
		s.closed = true
		close(s.closing)
	}
	return first
}

// command completes what was asked for by what holds in this instance.
func (s *processes) command(in holdfast.StartProcess) (Command, error) {
	if in.User == "" {
		in.User = s.boot.User
	}
	user, err := s.files.identify(in.User)
	if err != nil {
		return Command{}, err
	}
	defaults := map[string]string{"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": s.files.home()}
	if user != nil {
		defaults["HOME"], defaults["USER"] = user.Home, user.Name
	}
	if in.Terminal != nil {
		defaults["TERM"] = "xterm-256color"
	}
	env := environment(defaults, s.boot.Env, in.Env)
	dir := in.Cwd
	if dir == "" {
		dir = s.boot.Workdir
	}
	if dir == "" {
		dir = variable(env, "HOME")
		if !s.files.isDirectory(dir) {
			dir = "/"
		}
	}
	return Command{Name: in.Command, Args: in.Args, Env: env, Dir: dir, User: user, Terminal: in.Terminal, Stdin: in.Stdin}, nil
}

// await records the end of a process: after all that it wrote itself, and
// without waiting for children that it left.
func (s *processes) await(p *process) {
	defer s.leave()
	code := p.child.Wait()
	p.mu.Lock()
	p.record.State, p.record.ExitCode, p.record.FinishedAt = holdfast.ProcessExited, code, s.clock().UTC()
	p.mu.Unlock()
	final := p.now()
	s.recordEnd(p, final)
	s.retire(p)
	s.tell(p.report, final)
}

// tell reports the end of a process, where that was asked for. What ends with its
// instance ended by no will of its own: the host tells of that.
func (s *processes) tell(kind holdfast.ReportKind, final holdfast.Process) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if kind != holdfast.ReportNone && !s.closed {
		s.report(kind, final)
	}
}

// recordEnd goes on until the end is recorded, as followers of the spool wait
// for it. Where the disk is full it makes room: an exit code is worth more than
// old output.
func (s *processes) recordEnd(p *process, final holdfast.Process) {
	for {
		err := p.log.Record(final)
		if err == nil {
			return
		}
		s.log.Warn("no room to record how a process ended; dropping output", "process", final.ID, "error", err)
		if drop := s.dropOutput(p); drop != nil {
			s.log.Error("drop output", "error", drop)
		}
		if err = p.log.Record(final); err == nil {
			return
		}
		timer := time.NewTimer(time.Second)
		select {
		case <-timer.C:
		case <-s.closing:
			timer.Stop()
			s.log.Error("how a process ended is not recorded", "process", final.ID, "error", err)
			return
		}
	}
}

// dropOutput drops that of p and of all processes that have ended.
func (s *processes) dropOutput(p *process) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	errs := []error{p.log.DropOutput()}
	for _, other := range s.ended {
		errs = append(errs, other.log.DropOutput())
	}
	return errors.Join(errs...)
}

// retire keeps within the limits what is kept of processes that have ended.
func (s *processes) retire(p *process) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = append(s.ended, p)
	if id := p.now().RequestID; id != "" {
		s.settled = append(s.settled, id)
	}
	for len(s.settled) > KeptRequests {
		delete(s.requests, s.settled[0])
		s.settled = s.settled[1:]
	}
	for len(s.ended) > KeptProcesses {
		s.forget(s.ended[0])
		s.ended = s.ended[1:]
	}
	var kept int64
	for i := len(s.ended) - 1; i >= 0; i-- {
		log := s.ended[i].log
		kept += log.Stream(holdfast.Stdout).Kept() + log.Stream(holdfast.Stderr).Kept()
		if kept > KeptOutput && i < len(s.ended)-1 {
			if err := log.DropOutput(); err != nil {
				s.log.Error("drop old output", "error", err)
			}
		}
	}
}

// forget removes a process; what its request id tells of it is its end.
func (s *processes) forget(p *process) {
	p.mu.Lock()
	p.record.Args, p.record.Env = nil, nil
	id := p.record.ID
	p.mu.Unlock()
	delete(s.byID, id)
	if err := s.writer.Remove(id); err != nil {
		s.log.Error("remove an old process", "process", id, "error", err)
	}
}

// find returns a process of this boot, or NOT_FOUND.
func (s *processes) find(id holdfast.ProcessID) (*process, error) {
	if err := holdfast.CheckID("process_id", holdfast.PrefixProcess, string(id)); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if p, ok := s.byID[id]; ok {
		return p, nil
	}
	return nil, holdfast.E(holdfast.NotFound, holdfast.ReasonUnknown, "no process %s in this boot of the instance", id).On(string(id))
}

func (s *processes) GetProcess(_ context.Context, id holdfast.ProcessID) (holdfast.Process, error) {
	p, err := s.find(id)
	if err != nil {
		return holdfast.Process{}, err
	}
	return p.now(), nil
}

func (s *processes) ListProcesses(context.Context) ([]holdfast.Process, error) {
	s.mu.Lock()
	all := make([]*process, 0, len(s.byID))
	for _, p := range s.byID {
		all = append(all, p)
	}
	s.mu.Unlock()
	list := make([]holdfast.Process, 0, len(all))
	for _, p := range all {
		list = append(list, p.now())
	}
	slices.SortFunc(list, func(a, b holdfast.Process) int { return strings.Compare(string(a.ID), string(b.ID)) })
	return list, nil
}

func (s *processes) StreamProcessOutput(ctx context.Context, in holdfast.ReadOutput, yield func(holdfast.OutputChunk) error) (holdfast.Process, error) {
	if err := in.Validate(); err != nil {
		return holdfast.Process{}, err
	}
	if _, err := s.find(in.Process); err != nil {
		return holdfast.Process{}, err
	}
	return s.reader.Stream(ctx, in, yield)
}

func (s *processes) SignalProcess(_ context.Context, id holdfast.ProcessID, signal string) error {
	if err := holdfast.CheckSignal("signal", signal); err != nil {
		return err
	}
	p, err := s.find(id)
	if err != nil {
		return err
	}
	return onProcess(p.child.Signal(signal), id)
}

func (s *processes) ResizeTerminal(_ context.Context, id holdfast.ProcessID, size holdfast.TerminalSize) error {
	if err := size.Validate(); err != nil {
		return err
	}
	p, err := s.find(id)
	if err != nil {
		return err
	}
	return onProcess(p.child.Resize(size), id)
}

func onProcess(err error, id holdfast.ProcessID) error {
	if err == nil {
		return nil
	}
	return holdfast.AsError(err).On(string(id))
}

// lossy logs once what a full disk loses: it must not stop the process.
type lossy struct {
	to   *spool.StreamWriter
	log  *slog.Logger
	once sync.Once
}

func (l *lossy) Write(data []byte) (int, error) {
	if _, err := l.to.Write(data); err != nil {
		l.once.Do(func() { l.log.Warn("output is being lost", "error", err) })
	}
	return len(data), nil
}

func (l *lossy) Close() error { return l.to.Close() }
