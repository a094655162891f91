package guestagent_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/guestagent"
	"github.com/holdfast-dev/holdfast/spool"
)

// Reported elsewhere as "a child reaper ate exit codes, 200 of 200".
func TestExitCodesAreKept(t *testing.T) {
	a := start(t, nil)
	var all sync.WaitGroup
	for i := range 200 {
		all.Go(func() {
			p, err := a.Processes.StartProcess(t.Context(), holdfast.StartProcess{Command: "sh", Args: []string{"-c", fmt.Sprintf("exit %d", i)}})
			if err != nil {
				t.Error(err)
				return
			}
			got, err := a.Processes.StreamProcessOutput(t.Context(), holdfast.ReadOutput{Process: p.ID, Follow: true}, func(holdfast.OutputChunk) error { return nil })
			if err != nil || got.ExitCode != i || got.State != holdfast.ProcessExited || got.FinishedAt.IsZero() || got.Incarnation != 3 {
				t.Errorf("exit %d: %+v, %v", i, got, err)
			}
		})
	}
	all.Wait()
	for signal, code := range map[string]int{"TERM": 143, "KILL": 137, "INT": 130} {
		p := a.start(t, holdfast.StartProcess{Command: "sleep", Args: []string{"100"}})
		if err := a.Processes.SignalProcess(t.Context(), p.ID, signal); err != nil {
			t.Fatal(err)
		}
		if got, _, _ := a.wait(t, p.ID); got.ExitCode != code {
			t.Errorf("%s: exit code %d", signal, got.ExitCode)
		}
	}
}

// Reported elsewhere as "793 of 950 processes were zombies under PID 1".
func TestThousandOrphansLeaveNoZombie(t *testing.T) {
	a := start(t, nil)
	p := a.sh(t, `i=0; while [ $i -lt 1000 ]; do (sleep 0.05 & ) ; i=$((i+1)); done; exit 42`)
	if got, _, _ := a.wait(t, p.ID); got.ExitCode != 42 {
		t.Errorf("exit code %d", got.ExitCode)
	}
	eventually(t, "no child is left, dead or alive", func() bool { return len(children(t)) == 0 })
}

// children are the states of this process's children.
func children(t *testing.T) (states []string) {
	t.Helper()
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range stats {
		raw, err := os.ReadFile(path)
		if err != nil {
			continue // ended meanwhile
		}
		fields := strings.Fields(string(raw[bytes.LastIndexByte(raw, ')')+1:]))
		if fields[1] == strconv.Itoa(os.Getpid()) {
			states = append(states, fields[0])
		}
	}
	return states
}

func TestOutputIsBinarySafeAndSeparate(t *testing.T) {
	a := start(t, nil)
	p := a.sh(t, `printf '\000\377\376\n\r\200'; printf 'err\001' >&2; head -c 300000 /dev/urandom | tee /dev/stderr`)
	got, stdout, stderr := a.wait(t, p.ID)
	if !bytes.HasPrefix(stdout, []byte("\x00\xff\xfe\n\r\x80")) || !bytes.HasPrefix(stderr, []byte("err\x01")) {
		t.Errorf("stdout %q, stderr %q", stdout[:6], stderr[:4])
	}
	if !bytes.Equal(stdout[6:], stderr[4:]) || got.StdoutSize != 300_006 || got.StderrSize != 300_004 {
		t.Errorf("sizes %d, %d", got.StdoutSize, got.StderrSize)
	}
}

// What a process wrote itself is there when its end is, and its end does not
// wait for children that hold its output open.
func TestEndComesAfterOutputAndBeforeLeftoverChildren(t *testing.T) {
	a := start(t, nil)
	for range 50 {
		p := a.sh(t, `head -c 60000 /dev/zero; (sleep 60 &) ; exit 3`)
		defer killSession(t, p.PID)
		got, stdout, _ := a.wait(t, p.ID)
		if got.ExitCode != 3 || len(stdout) != 60000 {
			t.Fatalf("exit code %d, %d bytes", got.ExitCode, len(stdout))
		}
	}
	// A child that never stops writing does not keep the end back either, and
	// what it writes can still be read.
	p := a.sh(t, `while :; do echo noise; done & echo $!; exit 4`)
	got, _, _ := a.wait(t, p.ID)
	if got.ExitCode != 4 {
		t.Errorf("exit code %d", got.ExitCode)
	}
	eventually(t, "output goes on being collected", func() bool {
		later, err := a.Processes.GetProcess(t.Context(), p.ID)
		return err == nil && later.StdoutSize > got.StdoutSize
	})
	killSession(t, p.PID)
}

func TestEnvironmentAndDirectory(t *testing.T) {
	a := start(t, nil)
	dir := t.TempDir()
	p := a.start(t, holdfast.StartProcess{Command: "sh", Args: []string{"-c", `env; pwd; cat /dev/stdin`}, Cwd: dir, Env: map[string]string{"GIVEN": "a b\nc", "FROM": "call"}})
	got, stdout, _ := a.wait(t, p.ID)
	text := string(stdout)
	for _, want := range []string{"GIVEN=a b\nc", "FROM=call", "PATH=", "HOME=", dir + "\n"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in %q", want, text)
		}
	}
	for name := range strings.SplitSeq(text, "\n") {
		if strings.HasPrefix(name, "GO") || strings.Contains(name, "s3cr3t") {
			t.Errorf("of the agent: %q", name)
		}
	}
	if got.Cwd != dir || got.ExitCode != 0 {
		t.Errorf("%+v", got)
	}
}

func TestOnlyItsThreeFilesAreOpenInAProcess(t *testing.T) {
	a := start(t, nil)
	for range 3 { // more than one, as they could inherit from one another
		_, stdout, _ := a.wait(t, a.start(t, holdfast.StartProcess{Command: "ls", Args: []string{"-l", "/proc/self/fd"}, Stdin: true}).ID)
		if lines := strings.Count(string(stdout), " -> "); lines != 4 { // three, and the directory that ls reads
			t.Errorf("open files: %s", stdout)
		}
	}
}

func TestWhatCannotBeExecutedIsSaidPlainly(t *testing.T) {
	a := start(t, nil)
	dir := t.TempDir()
	files := map[string]struct {
		content string
		mode    os.FileMode
	}{
		"plain":  {"#!/bin/sh\n", 0o644},
		"orphan": {"#!/no/such/interpreter\n", 0o755},
		"noise":  {"\x7fELFno", 0o755},
	}
	for name, f := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(f.content), f.mode); err != nil {
			t.Fatal(err)
		}
	}
	cases := []struct {
		in   holdfast.StartProcess
		code holdfast.Code
		text string
	}{
		{holdfast.StartProcess{Command: "no-such-command"}, holdfast.FailedPrecondition, "command not found"},
		{holdfast.StartProcess{Command: "/no/such"}, holdfast.FailedPrecondition, "does not exist"},
		{holdfast.StartProcess{Command: "./plain", Cwd: dir}, holdfast.FailedPrecondition, "not executable"},
		{holdfast.StartProcess{Command: dir}, holdfast.FailedPrecondition, "is a directory"},
		{holdfast.StartProcess{Command: "./orphan", Cwd: dir}, holdfast.FailedPrecondition, "interpreter"},
		{holdfast.StartProcess{Command: "./noise", Cwd: dir}, holdfast.FailedPrecondition, "no program"},
		{holdfast.StartProcess{Command: "true", Cwd: "/no/such"}, holdfast.FailedPrecondition, "working directory"},
		{holdfast.StartProcess{Command: "true", Cwd: filepath.Join(dir, "plain")}, holdfast.FailedPrecondition, "working directory"},
		{holdfast.StartProcess{Command: ""}, holdfast.InvalidArgument, "command"},
		{holdfast.StartProcess{Command: "true", Cwd: "relative"}, holdfast.InvalidArgument, "cwd"},
		{holdfast.StartProcess{Command: "true", Args: []string{"a\x00b"}}, holdfast.InvalidArgument, "NUL"},
		{holdfast.StartProcess{Command: "true", Args: make([]string, 5000)}, holdfast.InvalidArgument, "args"},
		{holdfast.StartProcess{Command: "true", Env: map[string]string{"A=B": ""}}, holdfast.InvalidArgument, "env"},
		{holdfast.StartProcess{Command: "true", RequestID: strings.Repeat("x", 129)}, holdfast.InvalidArgument, "request_id"},
		{holdfast.StartProcess{Command: "true", Terminal: &holdfast.TerminalSize{}}, holdfast.InvalidArgument, "terminal"},
	}
	for _, c := range cases {
		_, err := a.Processes.StartProcess(t.Context(), c.in)
		if holdfast.CodeOf(err) != c.code || !strings.Contains(fmt.Sprint(err), c.text) {
			t.Errorf("%.40q in %q: %v", c.in.Command, c.in.Cwd, err)
		}
		if c.code == holdfast.FailedPrecondition && holdfast.ReasonOf(err) != holdfast.ReasonNoSuchCommand {
			t.Errorf("%.40q: reason %s", c.in.Command, holdfast.ReasonOf(err))
		}
	}
	if left, err := os.ReadDir(a.spool); err != nil || len(left) != 0 {
		t.Errorf("starts that failed left %v, %v", left, err)
	}
	// The largest that is allowed does run.
	p := a.start(t, holdfast.StartProcess{Command: "sh", Args: []string{"-c", "echo ${#1}", "sh", strings.Repeat("é", holdfast.MaxArg/2)}})
	if _, stdout, _ := a.wait(t, p.ID); strings.TrimSpace(string(stdout)) == "" {
		t.Error("a long argument got lost")
	}
}

// contract: A14; trap T45
func TestA14_T45_StartsOncePerRequestID(t *testing.T) {
	a := start(t, nil)
	marks := filepath.Join(t.TempDir(), "marks")
	in := holdfast.StartProcess{RequestID: "r-1", Command: "sh", Args: []string{"-c", "echo x >> " + marks}}
	var all sync.WaitGroup
	ids := make([]holdfast.ProcessID, 40)
	for i := range ids {
		all.Go(func() {
			p, err := a.Processes.StartProcess(t.Context(), in)
			if err != nil {
				t.Error(err)
			}
			ids[i] = p.ID
		})
	}
	all.Wait()
	for _, id := range ids {
		if id != ids[0] {
			t.Fatalf("%s and %s", id, ids[0])
		}
	}
	a.wait(t, ids[0])
	again := a.start(t, in)
	if again.ID != ids[0] || again.State != holdfast.ProcessExited {
		t.Errorf("after the end: %+v", again)
	}
	if raw, err := os.ReadFile(marks); err != nil || string(raw) != "x\n" {
		t.Errorf("it ran %d times, %v", bytes.Count(raw, []byte("x")), err)
	}
	other := in
	other.Args, other.Cwd = []string{"-c", "true"}, "/tmp"
	_, err := a.Processes.StartProcess(t.Context(), other)
	wantError(t, err, holdfast.AlreadyExists, holdfast.ReasonRequestReused)
	if fields := holdfast.AsError(err).Details["fields"]; fields != "args,cwd" {
		t.Errorf("fields %q", fields)
	}
	// A start that failed started nothing, and may be corrected.
	bad := holdfast.StartProcess{RequestID: "r-2", Command: "no-such-command"}
	_, err = a.Processes.StartProcess(t.Context(), bad)
	wantError(t, err, holdfast.FailedPrecondition, holdfast.ReasonNoSuchCommand)
	bad.Command = "true"
	if _, err := a.Processes.StartProcess(t.Context(), bad); err != nil {
		t.Error(err)
	}
}

// contract: A14
func TestA14_InputIsTakenOnceByOffset(t *testing.T) {
	a := start(t, nil)
	p := a.start(t, holdfast.StartProcess{Command: "cat", Stdin: true})
	for _, c := range []struct {
		offset int64
		data   string
		want   int64
		code   holdfast.Code
	}{
		{0, "hello ", 6, ""},
		{0, "hello ", 6, ""},
		{0, "hello world", 11, ""},
		{3, "lo", 11, ""},
		{12, "!", 11, holdfast.OutOfRange},
		{-1, "!", 12, ""},
		{0, strings.Repeat("x", holdfast.MaxProcessInput+1), 0, holdfast.InvalidArgument},
	} {
		got, err := a.Processes.WriteProcessInput(t.Context(), holdfast.ProcessInput{Process: p.ID, Offset: c.offset, Data: []byte(c.data)})
		if got != c.want || holdfast.CodeOf(err) != c.code {
			t.Errorf("%d %.12q: %d, %v", c.offset, c.data, got, err)
		}
	}
	for range 2 {
		if _, err := a.Processes.WriteProcessInput(t.Context(), holdfast.ProcessInput{Process: p.ID, Offset: 12, Close: true}); err != nil {
			t.Error(err)
		}
	}
	if got, stdout, _ := a.wait(t, p.ID); string(stdout) != "hello world!" || got.ExitCode != 0 {
		t.Errorf("%q, %+v", stdout, got)
	}
	if got, err := a.Processes.WriteProcessInput(t.Context(), holdfast.ProcessInput{Process: p.ID, Offset: 0, Data: []byte("hello")}); got != 12 || err != nil {
		t.Errorf("a repeat after the end: %d, %v", got, err)
	}
	_, err := a.Processes.WriteProcessInput(t.Context(), holdfast.ProcessInput{Process: p.ID, Offset: 12, Data: []byte("more")})
	wantError(t, err, holdfast.FailedPrecondition, holdfast.ReasonEnded)
	none := a.start(t, holdfast.StartProcess{Command: "true"})
	_, err = a.Processes.WriteProcessInput(t.Context(), holdfast.ProcessInput{Process: none.ID, Data: []byte("x")})
	wantError(t, err, holdfast.FailedPrecondition, holdfast.ReasonState)
}

// A writer to a process that does not read stops with its caller, and the input
// stands where it was taken to.
func TestInputStopsWithItsCaller(t *testing.T) {
	a := start(t, nil)
	p := a.start(t, holdfast.StartProcess{Command: "sleep", Args: []string{"100"}, Stdin: true})
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	taken, err := a.Processes.WriteProcessInput(ctx, holdfast.ProcessInput{Process: p.ID, Data: make([]byte, 1<<20)})
	if holdfast.CodeOf(err) != holdfast.DeadlineExceeded || taken == 0 || taken >= 1<<20 {
		t.Errorf("%d, %v", taken, err)
	}
	if detail := holdfast.AsError(err).Details["offset"]; detail != strconv.FormatInt(taken, 10) {
		t.Errorf("detail %q, taken %d", detail, taken)
	}
	if err := a.Processes.SignalProcess(t.Context(), p.ID, "KILL"); err != nil {
		t.Error(err)
	}
	a.wait(t, p.ID)
	_, err = a.Processes.WriteProcessInput(t.Context(), holdfast.ProcessInput{Process: p.ID, Offset: -1, Data: []byte("x")})
	wantError(t, err, holdfast.FailedPrecondition, holdfast.ReasonEnded)
}

func TestTerminal(t *testing.T) {
	a := start(t, nil)
	p := a.start(t, holdfast.StartProcess{Command: "sh", Terminal: &holdfast.TerminalSize{Columns: 91, Rows: 33}, Env: map[string]string{"PS1": "> "}})
	send := func(text string) {
		t.Helper()
		if _, err := a.Processes.WriteProcessInput(t.Context(), holdfast.ProcessInput{Process: p.ID, Offset: -1, Data: []byte(text)}); err != nil {
			t.Fatal(err)
		}
	}
	sees := func(text string) {
		t.Helper()
		eventually(t, text, func() bool {
			var seen strings.Builder
			_, err := a.Processes.StreamProcessOutput(t.Context(), holdfast.ReadOutput{Process: p.ID}, func(c holdfast.OutputChunk) error { seen.Write(c.Data); return nil })
			return err == nil && strings.Contains(seen.String(), text)
		})
	}
	send("stty size; tty; echo $TERM\n")
	sees("33 91\r\n")
	sees("/dev/pts/")
	sees("xterm-256color")
	if err := a.Processes.ResizeTerminal(t.Context(), p.ID, holdfast.TerminalSize{Columns: 120, Rows: 40}); err != nil {
		t.Fatal(err)
	}
	send("stty size\n")
	sees("40 120\r\n")
	send("sh -c 'echo go; exec sleep 100'\n")
	sees("go\r\n")
	send("\x03") // what a person types to interrupt it
	send("echo code $?\n")
	sees("code 130")
	if _, err := a.Processes.WriteProcessInput(t.Context(), holdfast.ProcessInput{Process: p.ID, Offset: -1, Close: true}); err != nil {
		t.Fatal(err)
	}
	if got, _, _ := a.wait(t, p.ID); got.State != holdfast.ProcessExited || !got.Terminal {
		t.Errorf("%+v", got)
	}
	err := a.Processes.ResizeTerminal(t.Context(), a.start(t, holdfast.StartProcess{Command: "true"}).ID, holdfast.TerminalSize{Columns: 1, Rows: 1})
	wantError(t, err, holdfast.FailedPrecondition, holdfast.ReasonState)
}

func TestSignalsGoToTheGroupAndNeverToAnother(t *testing.T) {
	a := start(t, nil)
	p := a.sh(t, `sleep 300 & sleep 300 & echo up; wait`)
	eventually(t, "it is up", func() bool {
		got, err := a.Processes.GetProcess(t.Context(), p.ID)
		return err == nil && got.StdoutSize > 0
	})
	if err := a.Processes.SignalProcess(t.Context(), p.ID, "TERM"); err != nil {
		t.Fatal(err)
	}
	if got, _, _ := a.wait(t, p.ID); got.ExitCode != 143 {
		t.Errorf("exit code %d", got.ExitCode)
	}
	eventually(t, "the whole group is gone", func() bool { return len(children(t)) == 0 })
	wantError(t, a.Processes.SignalProcess(t.Context(), p.ID, "TERM"), holdfast.FailedPrecondition, holdfast.ReasonEnded)
	wantError(t, a.Processes.SignalProcess(t.Context(), p.ID, "NOSUCH"), holdfast.InvalidArgument, holdfast.ReasonBadField)
	wantError(t, a.Processes.SignalProcess(t.Context(), "pr-00000000000000000000000000", "TERM"), holdfast.NotFound, holdfast.ReasonUnknown)
	wantError(t, a.Processes.SignalProcess(t.Context(), "../x", "TERM"), holdfast.InvalidArgument, holdfast.ReasonBadField)
}

// Output of gigabytes: memory stays bounded, old output goes, offsets stay right,
// and the process is never held up by readers.
func TestGigabytesOfOutputStayBounded(t *testing.T) {
	a := start(t, func(c *guestagent.Config) { c.Limits = spool.Limits{Segment: 4 << 20, Keep: 16 << 20} })
	const size = 1 << 30
	p := a.start(t, holdfast.StartProcess{Command: "head", Args: []string{"-c", strconv.Itoa(size), "/dev/zero"}})
	var before, peak, now runtime.MemStats
	runtime.ReadMemStats(&before)
	var next, gaps int64
	chunks := 0
	got, err := a.Processes.StreamProcessOutput(t.Context(), holdfast.ReadOutput{Process: p.ID, Follow: true}, func(c holdfast.OutputChunk) error {
		if c.Offset < next {
			t.Errorf("offset %d after %d", c.Offset, next)
		}
		gaps += c.Offset - next
		next = c.Offset + int64(len(c.Data))
		if chunks++; chunks%500 == 0 {
			runtime.ReadMemStats(&now)
			peak.HeapAlloc = max(peak.HeapAlloc, now.HeapAlloc)
		}
		return nil
	})
	if err != nil || got.StdoutSize != size || next != size || got.ExitCode != 0 {
		t.Fatalf("%+v, read to %d, %v", got, next, err)
	}
	if grown := int64(peak.HeapAlloc) - int64(before.HeapAlloc); grown > 64<<20 {
		t.Errorf("the heap grew by %d MiB", grown>>20)
	}
	var onDisk int64
	segments, err := filepath.Glob(filepath.Join(a.spool, string(p.ID), "stdout.*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range segments {
		st, err := os.Stat(s)
		if err != nil {
			t.Fatal(err)
		}
		onDisk += st.Size()
	}
	if onDisk > 16<<20 || onDisk < 8<<20 {
		t.Errorf("%d bytes on disk", onDisk)
	}
	t.Logf("%v for 1 GiB; the reader missed %d MiB", got.FinishedAt.Sub(got.StartedAt), gaps>>20)
}

func TestListAndGet(t *testing.T) {
	a := start(t, nil)
	first, second := a.sh(t, "exit 1"), a.start(t, holdfast.StartProcess{Command: "sleep", Args: []string{"100"}})
	a.wait(t, first.ID)
	list, err := a.Processes.ListProcesses(t.Context())
	if err != nil || len(list) != 2 {
		t.Fatalf("%v, %v", list, err)
	}
	host, err := spool.Open(a.spool, spool.Options{}).List(t.Context())
	if err != nil || len(host) != 2 {
		t.Fatalf("%v, %v", host, err)
	}
	for _, p := range host {
		got, err := a.Processes.GetProcess(t.Context(), p.ID)
		if err != nil || fmt.Sprintf("%+v", got) != fmt.Sprintf("%+v", p) {
			t.Errorf("the host sees %+v\nthe guest %+v, %v", p, got, err)
		}
	}
	_ = second
}
