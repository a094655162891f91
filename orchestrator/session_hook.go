package orchestrator

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/holdfast-dev/holdfast"
)

// hookEnd is how a hook ended; no failure: well.
type hookEnd struct{ failure *holdfast.Failure }

// hookTail is how much of a hook's output its failure shows, in bytes.
const hookTail = 2 << 10

// lookAtHook starts the hook of a session's operation, which its request id makes one
// process per boot, looks how far it is, and records its end. It reports whether it
// ended. A hook that cannot be started, fails or takes too long has ended too: it is
// reported, and holds up nothing for longer than its time (contract: A13).
func (s *Service) lookAtHook(ctx context.Context, h held, op string) (ended bool, err error) {
	verb := holdfast.OperationKind(h.pending.Kind)
	at := guestAddress{caller: holdfast.Caller{Project: h.Project}, sandbox: h.Sandbox, access: accessLive, incarnation: h.Incarnation}
	p, err := guestCall(s, ctx, at, func(g holdfast.Guest) (holdfast.Process, error) {
		return g.Processes.StartProcess(ctx, holdfast.StartProcess{RequestID: hookRequest(verb, op), Command: "/bin/sh", Args: []string{"-c", h.hookOf(verb)}})
	})
	end := judgeHook(verb, p, err, s.databaseClock().Sub(h.HookAt))
	if end == nil {
		return false, nil
	}
	if err == nil && p.State == holdfast.ProcessRunning {
		_, err := guestCall(s, ctx, at, func(g holdfast.Guest) (nothing, error) {
			return noAnswer(g.Processes.SignalProcess(ctx, p.ID, "KILL"))
		})
		if err != nil {
			s.config.Logger.Info("a hook that takes too long was not killed", "session", h.ID, "process", p.ID, "error", err)
		}
	}
	if end.failure != nil && p.ID != "" {
		end.failure.LogTail = s.tailOf(ctx, at, p)
	}
	_, _, err = s.advance(ctx, h.ID, op, end)
	return err == nil, err
}

// hookRequest is the request id of an operation's hook.
func hookRequest(verb holdfast.OperationKind, op string) string {
	return op + "/on_" + strings.ToLower(string(verb))
}

// judgeHook is how a hook ended that was first tried so long ago, as its process or
// the attempt to start it says; nil while it has not. It is pure.
func judgeHook(verb holdfast.OperationKind, p holdfast.Process, err error, since time.Duration) *hookEnd {
	over := since >= holdfast.HookTimeout
	fail := func(reason holdfast.Reason, format string, args ...any) *hookEnd {
		return &hookEnd{&holdfast.Failure{Reason: reason, Message: "the hook on_" + strings.ToLower(string(verb)) + " " + fmt.Sprintf(format, args...)}}
	}
	switch {
	case err != nil && over:
		return fail(holdfast.ReasonOf(err), "could not be started in %s: %s", holdfast.HookTimeout, holdfast.AsError(err).Message)
	case err != nil && (holdfast.Transient(err) || holdfast.CodeOf(err) == holdfast.Aborted || holdfast.ReasonOf(err) == holdfast.ReasonIncarnation ||
		holdfast.ReasonOf(err) == holdfast.ReasonState):
		return nil
	case err != nil:
		return fail(holdfast.ReasonOf(err), "cannot be started: %s", holdfast.AsError(err).Message)
	case p.State == holdfast.ProcessRunning && over:
		return fail(holdfast.ReasonTimeLimit, "still ran after %s, and was killed", holdfast.HookTimeout)
	case p.State == holdfast.ProcessRunning:
		return nil
	case p.Lost:
		return fail(holdfast.ReasonInstanceLost, "ended with its instance")
	case p.ExitCode != 0:
		return fail(holdfast.ReasonExitCode, "ended with exit code %d", p.ExitCode)
	}
	return &hookEnd{}
}

// tailOf is the end of what a process wrote, for people; "" where it cannot be read.
func (s *Service) tailOf(ctx context.Context, at guestAddress, p holdfast.Process) string {
	var out, log strings.Builder
	in := holdfast.ReadOutput{Process: p.ID, StdoutOffset: max(0, p.StdoutSize-hookTail), StderrOffset: max(0, p.StderrSize-hookTail)}
	at.access = accessRecorded
	_, err := guestCall(s, ctx, at, func(g holdfast.Guest) (nothing, error) {
		_, err := g.Processes.StreamProcessOutput(ctx, in, func(c holdfast.OutputChunk) error {
			if c.Stream == holdfast.Stderr {
				log.Write(c.Data)
				return nil
			}
			out.Write(c.Data)
			return nil
		})
		return noAnswer(err)
	})
	if err != nil {
		return ""
	}
	return strings.ToValidUTF8(out.String()+log.String(), "�")
}
