package client_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/client"
	"github.com/holdfast-dev/holdfast/client/clienttest"
	"github.com/holdfast-dev/holdfast/rpc"
)

const processID = holdfast.ProcessID("pr-00000000000000000000000000")

// flaky breaks each stream of output after a few chunks.
type flaky struct {
	holdfast.ProcessService
	stdout, stderr string
	chunks         int // how many each connection delivers; zero delivers none
	calls          []holdfast.ReadOutput
	overlap        int64 // how many bytes before the offset a chunk begins
}

func (f *flaky) StreamProcessOutput(_ context.Context, _ holdfast.Caller, _ holdfast.SandboxID, in holdfast.ReadOutput, yield func(holdfast.OutputChunk) error) (holdfast.Process, error) {
	f.calls = append(f.calls, in)
	for range f.chunks {
		var err error
		switch {
		case in.StdoutOffset < int64(len(f.stdout)):
			from := max(0, in.StdoutOffset-f.overlap)
			to := min(in.StdoutOffset+2, int64(len(f.stdout)))
			err = yield(holdfast.OutputChunk{Stream: holdfast.Stdout, Offset: from, Data: []byte(f.stdout[from:to])})
			in.StdoutOffset = to
		case in.StderrOffset < int64(len(f.stderr)):
			err = yield(holdfast.OutputChunk{Stream: holdfast.Stderr, Offset: in.StderrOffset, Data: []byte(f.stderr[in.StderrOffset:])})
			in.StderrOffset = int64(len(f.stderr))
		default:
			return holdfast.Process{ID: in.Process, State: holdfast.ProcessExited, ExitCode: 3}, nil
		}
		if err != nil {
			return holdfast.Process{}, err
		}
	}
	return holdfast.Process{}, unavailable()
}

// contract: A14
func TestA14_OutputSurvivesBrokenConnectionsByteForByte(t *testing.T) {
	for _, overlap := range []int64{0, 1, 5} {
		synctest.Test(t, func(t *testing.T) {
			service := &flaky{stdout: "hello, world", stderr: "oops", chunks: 1, overlap: overlap}
			c := client.Over(rpc.Services{Processes: service})
			got := map[holdfast.Stream]string{}
			process, err := c.StreamProcessOutput(t.Context(), sandboxID, holdfast.ReadOutput{Process: processID, Follow: true}, func(o holdfast.OutputChunk) error {
				if o.Offset != int64(len(got[o.Stream])) {
					t.Errorf("a chunk of %s at %d, after %d", o.Stream, o.Offset, len(got[o.Stream]))
				}
				got[o.Stream] += string(o.Data)
				return nil
			})
			if err != nil || process.ExitCode != 3 || got[holdfast.Stdout] != service.stdout || got[holdfast.Stderr] != service.stderr {
				t.Errorf("%+v %v %v", process, got, err)
			}
			if len(service.calls) != 8 || !service.calls[7].Follow {
				t.Errorf("opened %d times", len(service.calls))
			}
		})
	}
}

// contract: A14
func TestA14_AStreamThatOnlyBreaksIsGivenUpWithItsOffsets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		service := &flaky{stdout: "hello", chunks: 0}
		start := time.Now()
		_, err := client.Over(rpc.Services{Processes: service}).StreamProcessOutput(t.Context(), sandboxID,
			holdfast.ReadOutput{Process: processID, StdoutOffset: 2, StderrOffset: 7}, nil)
		var interrupted *client.InterruptedError
		if !errors.As(err, &interrupted) || interrupted.StdoutOffset != 2 || interrupted.StderrOffset != 7 || holdfast.CodeOf(err) != holdfast.Unavailable {
			t.Errorf("got %v", err)
		}
		if len(service.calls) != 10 || time.Since(start) > time.Minute {
			t.Errorf("opened %d times in %v", len(service.calls), time.Since(start))
		}
	})
}

func TestAReaderThatHasEnoughIsAskedNoMore(t *testing.T) {
	enough := errors.New("enough")
	service := &flaky{stdout: "hello", chunks: 5}
	_, err := client.Over(rpc.Services{Processes: service}).StreamProcessOutput(t.Context(), sandboxID,
		holdfast.ReadOutput{Process: processID}, func(holdfast.OutputChunk) error { return enough })
	if !errors.Is(err, enough) || len(service.calls) != 1 {
		t.Errorf("opened %d times: %v", len(service.calls), err)
	}
}

// contract: A14 (trap T45)
func TestT45_AStartIsNeverRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake := clienttest.New()
		sandbox := fake.Add(holdfast.SandboxReady).ID
		fake.After = script(unavailable())
		c := client.Over(fake.Services())
		start := holdfast.StartProcess{RequestID: "run-1", Command: "echo"}
		_, err := c.StartProcess(t.Context(), sandbox, start)
		var incomplete *client.IncompleteError
		if !errors.As(err, &incomplete) || incomplete.RequestID != "run-1" || len(fake.Calls("StartProcess")) != 1 {
			t.Errorf("%d calls: %v", len(fake.Calls("StartProcess")), err)
		}
		again, err := c.StartProcess(t.Context(), sandbox, start)
		all, failed := c.ListProcesses(t.Context(), sandbox)
		if err = errors.Join(err, failed); err != nil || len(all) != 1 || all[0].ID != again.ID {
			t.Errorf("the caller's repeat made %d processes: %v", len(all), err)
		}
	})
}

// contract: A14
func TestExecForwardsInputOnceThroughLostAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake := clienttest.New()
		sandbox := fake.Add(holdfast.SandboxReady).ID
		lost := map[int64]bool{} // the first answer for each part
		fake.After = func(_ context.Context, call clienttest.Call) error {
			if in, ok := call.In.(holdfast.ProcessInput); ok && !in.Close && !lost[in.Offset] {
				lost[in.Offset] = true
				return unavailable()
			}
			return nil
		}
		input := strings.Repeat("some input\n", 20_000)
		var got bytes.Buffer
		var started holdfast.Process
		process, err := client.Over(fake.Services()).Exec(t.Context(), sandbox, holdfast.StartProcess{Command: "cat", Stdin: true}, client.ExecIO{
			Stdin:   iotestOneEOF{strings.NewReader(input)},
			Started: func(p holdfast.Process) { started = p },
			Output:  func(c holdfast.OutputChunk) error { got.Write(c.Data); return nil },
		})
		if err != nil || got.String() != input || process.ID != started.ID || process.State != holdfast.ProcessExited {
			t.Errorf("%d of %d bytes, %+v, %v", got.Len(), len(input), process, err)
		}
		if len(lost) < 3 {
			t.Errorf("%d answers were lost", len(lost))
		}
	})
}

// iotestOneEOF gives data and its end apart, as pipes do.
type iotestOneEOF struct{ r io.Reader }

func (r iotestOneEOF) Read(p []byte) (int, error) { return r.r.Read(p) }

func TestExecReturnsTheCodeAndWhatCouldNotStart(t *testing.T) {
	fake := clienttest.New()
	sandbox := fake.Add(holdfast.SandboxReady).ID
	c := client.Over(fake.Services())
	process, err := c.Exec(t.Context(), sandbox, holdfast.StartProcess{Command: "exit", Args: []string{"7"}}, client.ExecIO{})
	if err != nil || process.ExitCode != 7 {
		t.Errorf("%+v %v", process, err)
	}
	if id := fake.Calls("StartProcess")[0].In.(holdfast.StartProcess).RequestID; id == "" {
		t.Error("no request id was minted")
	}
	if _, err := c.Exec(t.Context(), sandbox, holdfast.StartProcess{Command: "nope"}, client.ExecIO{}); holdfast.ReasonOf(err) != holdfast.ReasonNoSuchCommand {
		t.Errorf("got %v", err)
	}
}

// contract: A14 (trap T44)
func TestT44_WhatArrivesOtherThanSentIsNoSuccess(t *testing.T) {
	fake := clienttest.New()
	sandbox := fake.Add(holdfast.SandboxReady).ID
	services := fake.Services()
	services.Files = lyingFiles{fake}
	if _, err := client.Over(services).Upload(t.Context(), sandbox, holdfast.WriteFile{Path: "/f"}, strings.NewReader("sent")); err == nil || !strings.Contains(err.Error(), "write it again") {
		t.Errorf("got %v", err)
	}
	c := client.Over(fake.Services())
	if _, err := c.Upload(t.Context(), sandbox, holdfast.WriteFile{Path: "/f"}, strings.NewReader("sent")); err != nil {
		t.Error(err)
	}
	var got bytes.Buffer
	if info, err := c.Download(t.Context(), sandbox, holdfast.ReadFile{Path: "/f"}, &got); err != nil || got.String() != "sent" || info.Size != 4 {
		t.Errorf("%q %+v %v", got.String(), info, err)
	}
}

// lyingFiles writes something else than it is sent.
type lyingFiles struct{ holdfast.FileService }

func (l lyingFiles) WriteFile(ctx context.Context, caller holdfast.Caller, sandbox holdfast.SandboxID, in holdfast.WriteFile, content io.Reader) (holdfast.FileWritten, error) {
	if _, err := io.Copy(io.Discard, content); err != nil {
		return holdfast.FileWritten{}, err
	}
	return l.FileService.WriteFile(ctx, caller, sandbox, in, strings.NewReader("other"))
}

func TestTheLogIsReadThroughTheSameFollower(t *testing.T) {
	fake := clienttest.New()
	sandbox := fake.Add(holdfast.SandboxFailed).ID
	var got string
	err := client.Over(fake.Services()).StreamSandboxLog(t.Context(), holdfast.SandboxLog{ID: sandbox, Offset: 2}, func(c holdfast.OutputChunk) error {
		got += string(c.Data)
		return nil
	})
	if err != nil || got != "oted\n" {
		t.Errorf("%q %v", got, err)
	}
}
