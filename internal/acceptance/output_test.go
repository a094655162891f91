package acceptance

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/client"
	"github.com/holdfast-dev/holdfast/internal/testenv"
)

// memory reads one of the server's sizes of memory, in bytes: VmRSS is now,
// VmHWM the most that was.
func (s *system) memory(field string) int64 {
	s.t.Helper()
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.PID()))
	if err != nil {
		s.t.Fatal(err)
	}
	for line := range strings.Lines(string(raw)) {
		if words := strings.Fields(line); len(words) == 3 && words[0] == field+":" {
			kib, err := strconv.ParseInt(words[1], 10, 64)
			if err != nil {
				s.t.Fatal(err)
			}
			return kib << 10
		}
	}
	s.t.Fatalf("no %s in the server's status", field)
	return 0
}

// descriptors lists the files that the server has open, as the kernel names them.
func (s *system) descriptors() []string {
	s.t.Helper()
	links, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", s.PID()))
	if err != nil {
		s.t.Fatal(err)
	}
	var open []string
	for _, link := range links {
		if name, err := os.Readlink(link); err == nil { // else closed meanwhile
			open = append(open, name)
		}
	}
	slices.Sort(open)
	return open
}

// contract: A14: bytes come out as they went in, on each stream.
func TestA14_BinaryOutputIsByteExact(t *testing.T) {
	s := serve(t)
	sb := s.create("r1")
	want := make([]byte, 3<<20+1)
	if _, err := rand.Read(want); err != nil {
		t.Fatal(err)
	}
	copy(want, []byte{0, 0xff, 0xfe, '\r', '\n', 0x1b, 0xc3, 0x28, 0x80})
	if _, err := s.client.Upload(t.Context(), sb.ID, holdfast.WriteFile{Path: "/blob"}, bytes.NewReader(want)); err != nil {
		t.Fatal(err)
	}
	out, errs, code := s.sh(sb.ID, "cat /blob; cat /blob >&2")
	if out != string(want) || errs != string(want) || code != 0 {
		t.Errorf("%d and %d bytes of %d, exit %d; equal: %t, %t", len(out), len(errs), len(want), code, out == string(want), errs == string(want))
	}
	var back bytes.Buffer
	if _, err := s.client.Download(t.Context(), sb.ID, holdfast.ReadFile{Path: "/blob"}, &back); err != nil || !bytes.Equal(back.Bytes(), want) {
		t.Errorf("the file came back as %d bytes, %v", back.Len(), err)
	}
	// Any part of it by offset, also after the end.
	list, err := s.client.ListProcesses(t.Context(), sb.ID)
	if err != nil || len(list) != 1 || list[0].StdoutSize != int64(len(want)) || list[0].StderrSize != int64(len(want)) {
		t.Fatalf("%+v %v", list, err)
	}
	var tail bytes.Buffer
	in := holdfast.ReadOutput{Process: list[0].ID, StdoutOffset: int64(len(want)) - 1000, StderrOffset: int64(len(want))}
	if _, err := s.client.StreamProcessOutput(t.Context(), sb.ID, in, func(c holdfast.OutputChunk) error { tail.Write(c.Data); return nil }); err != nil {
		t.Error(err)
	}
	if !bytes.Equal(tail.Bytes(), want[len(want)-1000:]) {
		t.Errorf("the tail is %d bytes", tail.Len())
	}
}

// contract: A14: output is not packed, even for a client that would take it so:
// packing it is slower by far than writing it, and a follower that falls behind
// loses what its process's spool drops.
func TestA14_OutputIsSentAsItIs(t *testing.T) {
	s := serve(t)
	sb := s.create("r1")
	p, err := s.client.Exec(t.Context(), sb.ID, holdfast.StartProcess{Command: "dd", Args: []string{"if=/dev/zero", "bs=1M", "count=4"}}, client.ExecIO{})
	if err != nil {
		t.Fatal(err)
	}
	ask := fmt.Appendf(nil, `{"sandboxId":%q,"processId":%q}`, sb.ID, p.ID)
	header := http.Header{"Content-Type": {"application/connect+json"}, "Connect-Accept-Encoding": {"gzip"}}
	a := s.plain(http.MethodPost, "/holdfast.v1.ProcessService/StreamProcessOutput", "Bearer "+s.Key(), header,
		bytes.NewReader(append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(ask))), ask...)))
	if a.Status != http.StatusOK || len(a.Body) < 4<<20 {
		t.Fatalf("%d, %d bytes", a.Status, len(a.Body))
	}
	const packed = 1 // the flag of a frame
	for rest := []byte(a.Body); len(rest) > 5; {
		if rest[0]&packed != 0 {
			t.Fatal("a frame is packed")
		}
		rest = rest[5+binary.BigEndian.Uint32(rest[1:5]):]
	}
}

// patternReader holds chunks of the probe's pattern to what their offsets say.
type patternReader struct {
	first, next, bytes int64
	any                bool
}

func (r *patternReader) take(c holdfast.OutputChunk) error {
	if !r.any {
		r.first, r.next, r.any = c.Offset, c.Offset, true
	}
	if c.Offset < r.next {
		return fmt.Errorf("offset %d after %d", c.Offset, r.next)
	}
	var word [8]byte
	for i, b := range c.Data {
		at := c.Offset + int64(i)
		binary.BigEndian.PutUint64(word[:], uint64(at&^7))
		if b != word[at&7] {
			return fmt.Errorf("byte %d is %#x, want %#x", at, b, word[at&7])
		}
	}
	r.next, r.bytes = c.Offset+int64(len(c.Data)), r.bytes+int64(len(c.Data))
	return nil
}

// contract: A14: a process may write without end: the server's memory stays
// small, each byte that is kept is at its offset, and where the oldest are gone
// the first chunk's offset says so.
func TestA14_AGigabyteOfOutputTakesLittleMemoryAndKeepsItsOffsets(t *testing.T) {
	s := serve(t)
	sb := s.withProbe(s.create("r1"))
	const size = 1 << 30
	before := s.memory("VmRSS")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	p, err := s.client.StartProcess(ctx, sb.ID, holdfast.StartProcess{Command: probe, Args: []string{"pattern", strconv.Itoa(size)}})
	if err != nil {
		t.Fatal(err)
	}
	var live patternReader
	ended, err := s.client.StreamProcessOutput(ctx, sb.ID, holdfast.ReadOutput{Process: p.ID, Follow: true}, live.take)
	if err != nil || ended.ExitCode != 0 || ended.StdoutSize != size || live.next != size {
		t.Fatalf("the live reader is at %d: %+v %v", live.next, ended, err)
	}
	var late patternReader
	if _, err := s.client.StreamProcessOutput(ctx, sb.ID, holdfast.ReadOutput{Process: p.ID}, late.take); err != nil {
		t.Fatal(err)
	}
	if late.first == 0 || late.next != size || late.bytes != size-late.first || late.bytes < 32<<20 || late.bytes > 64<<20 {
		t.Errorf("kept are %d bytes from %d to %d", late.bytes, late.first, late.next)
	}
	var tail patternReader
	if _, err := s.client.StreamProcessOutput(ctx, sb.ID, holdfast.ReadOutput{Process: p.ID, StdoutOffset: size - 12345}, tail.take); err != nil || tail.first != size-12345 || tail.bytes != 12345 {
		t.Errorf("the tail: %d bytes from %d, %v", tail.bytes, tail.first, err)
	}
	_, err = s.client.StreamProcessOutput(ctx, sb.ID, holdfast.ReadOutput{Process: p.ID, StdoutOffset: size + 1}, tail.take)
	wantCode(t, "an offset beyond the end", err, holdfast.OutOfRange, holdfast.ReasonBadField)
	most := s.memory("VmHWM")
	t.Logf("the server had %d MiB before and %d MiB at most; the live reader saw %d MiB of 1024", before>>20, most>>20, live.bytes>>20)
	if most-before > 64<<20 {
		t.Errorf("1 GiB of output took %d MiB", (most-before)>>20)
	}
}

// cutting is a client whose connections break when told.
type cutting struct {
	mu    sync.Mutex
	conns []net.Conn
	gone  bool // what is still being dialled is given up too
}

func (c *cutting) client(s *system) *client.Client {
	p := new(http.Protocols)
	p.SetUnencryptedHTTP2(true)
	return s.dial(client.WithHTTPClient(&http.Client{Transport: &http.Transport{Protocols: p, DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
		if err != nil {
			return nil, err
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.gone {
			return nil, errors.Join(errors.New("gone"), conn.Close())
		}
		c.conns = append(c.conns, conn)
		return conn, nil
	}}}))
}

// cut resets every connection, as a machine that crashed would.
func (c *cutting) cut() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	var errs []error
	for _, conn := range c.conns {
		if tcp, ok := conn.(*net.TCPConn); ok {
			errs = append(errs, tcp.SetLinger(0))
		}
		if err := conn.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
			errs = append(errs, err)
		}
	}
	c.conns, c.gone = nil, true
	return errors.Join(errs...)
}

// hangingUp calls something and leaves in the middle: told says when that is.
type hangingUp struct {
	name string
	call func(ctx context.Context, c *client.Client, told func()) error
}

func hangUps(sb holdfast.SandboxID, writer holdfast.ProcessID) []hangingUp {
	return []hangingUp{
		{"exec follow", func(ctx context.Context, c *client.Client, told func()) error {
			_, err := c.StreamProcessOutput(ctx, sb, holdfast.ReadOutput{Process: writer, Follow: true}, func(holdfast.OutputChunk) error { told(); return nil })
			return err
		}},
		{"upload", func(ctx context.Context, c *client.Client, told func()) error {
			_, err := c.Upload(ctx, sb, holdfast.WriteFile{Path: "/t/file"}, &interruptedContent{ctx: ctx, told: told, left: 2 << 20})
			return err
		}},
		{"download", func(ctx context.Context, c *client.Client, told func()) error {
			_, content, err := c.ReadFile(ctx, sb, holdfast.ReadFile{Path: "/t/large"})
			if err != nil {
				return err
			}
			if _, err := io.ReadFull(content, make([]byte, 1<<20)); err != nil {
				return err
			}
			told()
			<-ctx.Done()
			return errors.Join(ctx.Err(), content.Close())
		}},
		{"watch", func(ctx context.Context, c *client.Client, told func()) error {
			return c.WatchDirectory(ctx, sb, holdfast.WatchDirectory{Path: "/t", Recursive: true, Started: told}, func(holdfast.FileEvent) error { return nil })
		}},
	}
}

// interruptedContent gives so many bytes and then, told, nothing until ctx ends.
type interruptedContent struct {
	ctx  context.Context
	told func()
	left int
}

func (r *interruptedContent) Read(p []byte) (int, error) {
	if r.left == 0 {
		r.told()
		<-r.ctx.Done()
		return 0, r.ctx.Err()
	}
	n := min(len(p), r.left)
	r.left -= n
	return n, nil
}

// contract: A2, A14, T44: clients that hang up in the middle, politely or by a
// broken connection, lose nothing (the old file is whole, the process runs on)
// and leave nothing open in the server.
func TestA14_ClientsThatHangUpLoseAndLeakNothing(t *testing.T) {
	s := serve(t)
	sb := s.create("r1")
	if _, errs, code := s.sh(sb.ID, "mkdir /t && echo old > /t/file && dd if=/dev/zero of=/t/large bs=1M count=32"); code != 0 {
		t.Fatal(errs)
	}
	writer, err := s.client.StartProcess(t.Context(), sb.ID, holdfast.StartProcess{Command: "sh", Args: []string{"-c", "while ! test -e /t/stop; do echo line; usleep 10000; done; echo last"}})
	if err != nil {
		t.Fatal(err)
	}
	s.hangUp(hangUps(sb.ID, writer.ID), 1) // what is opened once and kept
	before := s.descriptors()
	s.hangUp(hangUps(sb.ID, writer.ID), 5)
	var after []string
	if !testenv.Eventually(10*time.Second, func() bool { after = s.descriptors(); return len(after) <= len(before) }) {
		t.Errorf("the server had %d files open, and has %d: %s\nwere %s", len(before), len(after), after, before)
	}
	s.wantOutput(sb.ID, "cat /t/file; find /t -name '.*' | wc -l; ls /t", "old\n0\nfile\nlarge")
	s.wantOutput(sb.ID, "touch /t/stop", "")
	var out bytes.Buffer
	ended, err := s.client.StreamProcessOutput(t.Context(), sb.ID, holdfast.ReadOutput{Process: writer.ID, Follow: true}, func(c holdfast.OutputChunk) error { out.Write(c.Data); return nil })
	if err != nil || ended.ExitCode != 0 || !strings.HasSuffix(out.String(), "line\nlast\n") || int64(out.Len()) != ended.StdoutSize {
		t.Errorf("who followed it hung up, and the process: %+v %v", ended, err)
	}
	guest := s.guestDescriptors(sb.ID)
	if guest > 32 {
		t.Errorf("the guest's agent has %d files open", guest)
	}
}

// hangUp does each so many times: cancelled by the caller, then cut off.
func (s *system) hangUp(calls []hangingUp, times int) {
	s.t.Helper()
	for _, h := range calls {
		for i := range 2 * times {
			var connection cutting
			ctx, cancel := context.WithTimeout(s.t.Context(), 20*time.Second)
			middle, done := make(chan struct{}), make(chan error, 1)
			told := sync.OnceFunc(func() { close(middle) })
			go func() { done <- h.call(ctx, connection.client(s), told) }()
			select {
			case <-middle:
			case err := <-done:
				s.t.Fatalf("%s ended by itself: %v", h.name, err)
			}
			if i%2 == 1 {
				if err := connection.cut(); err != nil {
					s.t.Fatalf("%s: %v", h.name, err)
				}
			}
			cancel()
			if err := <-done; err == nil {
				s.t.Errorf("%s: success, though its caller left", h.name)
			}
			if err := connection.cut(); err != nil {
				s.t.Fatalf("%s: %v", h.name, err)
			}
		}
	}
}

// guestDescriptors counts what a sandbox's agent has open.
func (s *system) guestDescriptors(id holdfast.SandboxID) int {
	s.t.Helper()
	open, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", s.guestPID(id)))
	if err != nil {
		s.t.Fatal(err)
	}
	return len(open)
}

// contract: A2: creates whose callers hung up at any moment finish by themselves
// or were never recorded, and a repeat finds them: one container each.
func TestA2_CreatesWhoseCallersHangUpAreFinished(t *testing.T) {
	s := serve(t)
	s.create("warm")
	for i, after := range []time.Duration{0, 2, 5, 10, 20, 40, 80} {
		var connection cutting
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		in := holdfast.CreateSandbox{RequestID: fmt.Sprint("left-", i), Environment: "base"}
		go func() {
			defer close(done)
			_, err := connection.client(s).CreateSandbox(ctx, in)
			t.Logf("hung up after %d ms: %v", after, err)
		}()
		moment := time.NewTimer(after * time.Millisecond)
		<-moment.C
		if err := connection.cut(); err != nil {
			t.Error(err)
		}
		cancel()
		<-done
	}
	// Without anyone repeating them.
	settled := testenv.Eventually(15*time.Second, func() bool {
		page, err := s.client.ListSandboxes(t.Context(), holdfast.ListSandboxes{})
		return err == nil && !slices.ContainsFunc(page.Sandboxes, func(sb holdfast.Sandbox) bool { return sb.State != holdfast.SandboxReady })
	})
	if !settled {
		t.Errorf("creates are left unfinished\n%s", s.Log())
	}
	for i := range 7 {
		s.create(fmt.Sprint("left-", i))
	}
	if n := s.containers(); n != 8 {
		t.Errorf("%d containers of 8 sandboxes", n)
	}
}

// contract: T45 and the reports of zombies under PID 1 and of a reaper that ate
// exit codes: 1,000 orphans leave none, and the codes of real processes are right
// meanwhile.
func TestT45_AThousandOrphansLeaveNoZombieAndExitCodesAreRight(t *testing.T) {
	s := serve(t)
	sb := s.withProbe(s.create("r1"))
	orphans := make(chan string, 1)
	go func() {
		var out bytes.Buffer
		_, err := s.client.Exec(t.Context(), sb.ID, holdfast.StartProcess{Command: probe, Args: []string{"orphans", "1000"}}, client.ExecIO{
			Output: func(c holdfast.OutputChunk) error { out.Write(c.Data); return nil }})
		orphans <- fmt.Sprint(strings.TrimSpace(out.String()), " ", err)
	}()
	running, codes := true, 0
	for code := 0; running; code = (code + 1) % 120 {
		p, err := s.client.Exec(t.Context(), sb.ID, holdfast.StartProcess{Command: "sh", Args: []string{"-c", "exit " + strconv.Itoa(code)}}, client.ExecIO{})
		if err != nil || p.ExitCode != code {
			t.Errorf("exit %d is %d, %v", code, p.ExitCode, err)
		}
		codes++
		select {
		case said := <-orphans:
			running = false
			if said != "ok 1000 <nil>" {
				t.Errorf("the orphans: %s", said)
			}
		default:
		}
	}
	if codes < 5 {
		t.Errorf("only %d exit codes were taken meanwhile", codes)
	}
	var zombies string
	if !testenv.Eventually(5*time.Second, func() bool {
		zombies, _, _ = s.sh(sb.ID, "ps -o stat,pid,args | grep '^Z'")
		return zombies == ""
	}) {
		t.Errorf("zombies:\n%s", zombies)
	}
	s.wantOutput(sb.ID, "ps -o pid > /tmp/ps; wc -l < /tmp/ps", "4") // the heading, PID 1, sh and ps
}

// contract: A14, T45: a start with a request id is one process, also for callers
// at once and across a server that is killed; with other input it is refused.
func TestT45_AStartWithARequestIDHappensOnce(t *testing.T) {
	s := serve(t)
	sb := s.create("r1")
	in := holdfast.StartProcess{RequestID: "once", Command: "sh", Args: []string{"-c", "echo started >> /count; exec sleep 1000"}}
	ids := make(chan holdfast.ProcessID, 8)
	var wait sync.WaitGroup
	for range 8 {
		wait.Go(func() {
			p, err := s.client.StartProcess(t.Context(), sb.ID, in)
			if err != nil {
				t.Errorf("start: %v", err)
			}
			ids <- p.ID
		})
	}
	wait.Wait()
	first := <-ids
	s.Kill()
	s.Start()
	again, err := s.client.StartProcess(t.Context(), sb.ID, in)
	if err != nil || again.State != holdfast.ProcessRunning {
		t.Fatalf("after a restart: %+v %v", again, err)
	}
	for _, id := range append([]holdfast.ProcessID{<-ids, <-ids, <-ids, <-ids, <-ids, <-ids, <-ids}, again.ID) {
		if id != first {
			t.Errorf("%s, and %s", first, id)
		}
	}
	other := in
	other.Args, other.Cwd = []string{"-c", "true"}, "/tmp"
	_, err = s.client.StartProcess(t.Context(), sb.ID, other)
	wantCode(t, "other input", err, holdfast.AlreadyExists, holdfast.ReasonRequestReused)
	if err != nil && holdfast.AsError(err).Details["fields"] != "args,cwd" {
		t.Errorf("the fields that differ are not named: %v", holdfast.AsError(err).Details)
	}
	s.wantOutput(sb.ID, "cat /count", "started")
	if err := s.client.SignalProcess(t.Context(), sb.ID, first, "TERM"); err != nil {
		t.Fatal(err)
	}
	ended, err := s.client.StreamProcessOutput(t.Context(), sb.ID, holdfast.ReadOutput{Process: first, Follow: true}, func(holdfast.OutputChunk) error { return nil })
	if err != nil || ended.ExitCode != 128+15 {
		t.Errorf("%+v %v", ended, err)
	}
	if again, err = s.client.StartProcess(t.Context(), sb.ID, in); err != nil || again.ID != first || again.State != holdfast.ProcessExited {
		t.Errorf("after its end: %+v %v", again, err)
	}
}

// contract: A14: exit codes, signals (128 + n), standard input and terminals.
func TestA14_ExitCodesSignalsInputAndTerminals(t *testing.T) {
	s := serve(t)
	sb := s.create("r1")
	for script, want := range map[string]int{"exit 0": 0, "exit 255": 255, "kill -9 $$": 137, "kill -SEGV $$": 139, "no-such-command": 127} {
		if _, errs, code := s.sh(sb.ID, script); code != want {
			t.Errorf("%s: exit %d, want %d: %s", script, code, want, errs)
		}
	}
	content := bytes.Repeat([]byte("some input\x00\n"), 100_000)
	var got bytes.Buffer
	p, err := s.client.Exec(t.Context(), sb.ID, holdfast.StartProcess{Command: "cat", Stdin: true}, client.ExecIO{
		Stdin: bytes.NewReader(content), Output: func(c holdfast.OutputChunk) error { got.Write(c.Data); return nil }})
	if err != nil || p.ExitCode != 0 || !bytes.Equal(got.Bytes(), content) {
		t.Errorf("cat: %d of %d bytes, exit %d, %v", got.Len(), len(content), p.ExitCode, err)
	}
	// One who never reads ends all the same, with its code.
	p, err = s.client.Exec(t.Context(), sb.ID, holdfast.StartProcess{Command: "sh", Args: []string{"-c", "exit 4"}, Stdin: true}, client.ExecIO{Stdin: bytes.NewReader(content)})
	if err != nil || p.ExitCode != 4 {
		t.Errorf("a process that does not read its input: exit %d, %v", p.ExitCode, err)
	}
	s.typeInTerminal(sb.ID)
}

// promptedAfter reports whether the shell prompted after some output.
func promptedAfter(seen, output string) bool {
	_, after, found := strings.Cut(seen, output)
	return found && strings.Contains(after, "~ # ")
}

// typeInTerminal uses a terminal as a person would.
func (s *system) typeInTerminal(id holdfast.SandboxID) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), 20*time.Second)
	defer cancel()
	p, err := s.client.StartProcess(ctx, id, holdfast.StartProcess{Command: "sh", Terminal: &holdfast.TerminalSize{Columns: 100, Rows: 30}})
	if err != nil {
		s.t.Fatal(err)
	}
	enter := func(line string) {
		if _, err := s.client.WriteProcessInput(ctx, id, holdfast.ProcessInput{Process: p.ID, Offset: -1, Data: []byte(line)}); err != nil {
			s.t.Errorf("type %q: %v", line, err)
		}
	}
	enter("tty; stty size\n")
	var seen strings.Builder
	step := 0
	ended, err := s.client.StreamProcessOutput(ctx, id, holdfast.ReadOutput{Process: p.ID, Follow: true}, func(c holdfast.OutputChunk) error {
		seen.Write(c.Data)
		switch {
		case step == 0 && strings.Contains(seen.String(), "30 100\r\n"):
			step++
			if err := s.client.ResizeTerminal(ctx, id, p.ID, holdfast.TerminalSize{Columns: 42, Rows: 7}); err != nil {
				return err
			}
			enter("stty size\n")
		case step == 1 && strings.Contains(seen.String(), "7 42\r\n"):
			step++
			enter("echo go$((1+1)); sleep 1000\n")
		case step == 2 && strings.Contains(seen.String(), "go2\r\n"):
			step++
			enter("\x03") // the interrupt key
		case step == 3 && promptedAfter(seen.String(), "go2\r\n"):
			step++
			enter("exit 9\n")
		}
		return nil
	})
	if err != nil || ended.ExitCode != 9 || step != 4 || !strings.Contains(seen.String(), "/dev/pts/") {
		s.t.Errorf("the terminal came to step %d, exit %d, %v:\n%q", step, ended.ExitCode, err, seen.String())
	}
	wantCode(s.t, "a size for what has ended", s.client.ResizeTerminal(ctx, id, p.ID, holdfast.TerminalSize{Columns: 1, Rows: 1}), holdfast.FailedPrecondition, holdfast.ReasonEnded)
}
