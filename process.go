package holdfast

import (
	"context"
	"time"
)

// ProcessState is whether a process still runs.
type ProcessState string

// The states of a process.
const (
	ProcessRunning ProcessState = "RUNNING"
	ProcessExited  ProcessState = "EXITED"
)

// Process is a command in a guest.
type Process struct {
	ID          ProcessID         `json:"id"`
	RequestID   string            `json:"request_id,omitempty"`
	Incarnation int64             `json:"incarnation"`
	Command     string            `json:"command"`
	Args        []string          `json:"args,omitempty"`
	Cwd         string            `json:"cwd,omitempty"`
	Env         map[string]string `json:"env,omitempty"`
	Terminal    bool              `json:"terminal,omitempty"`
	PID         int               `json:"pid"`
	State       ProcessState      `json:"state"`
	ExitCode    int               `json:"exit_code"`      // 128 + signal where a signal ended it
	Lost        bool              `json:"lost,omitempty"` // ended with its instance: no exit code is known
	StdoutSize  int64             `json:"stdout_size"`    // bytes written so far
	StderrSize  int64             `json:"stderr_size"`    // bytes written so far
	StartedAt   time.Time         `json:"started_at"`
	FinishedAt  time.Time         `json:"finished_at"`
}

// StartProcess is the input of a start. With a RequestID it starts once per
// incarnation (contract: A14).
type StartProcess struct {
	RequestID string            `json:"request_id,omitempty"`
	Command   string            `json:"command"`
	Args      []string          `json:"args,omitempty"`
	Cwd       string            `json:"cwd,omitempty"`  // default: the environment's, or the user's home
	Env       map[string]string `json:"env,omitempty"`  // added to the sandbox's
	User      string            `json:"user,omitempty"` // a name or number, with ":GROUP" if need be; default: the environment's, or root
	Terminal  *TerminalSize     `json:"terminal,omitempty"`
	Stdin     bool              `json:"stdin,omitempty"` // keep standard input open for WriteProcessInput
	// Report lets the guest agent deliver a ProcessReport when it has ended. It is for
	// the orchestrator's own processes, and needs a RequestID; callers cannot ask for it.
	Report ReportKind `json:"report,omitempty"`
}

// ReportKind says what the end of a process means to the orchestrator.
type ReportKind string

// The kinds of reports. Each names its deliveries.
const (
	ReportNone  ReportKind = ""
	ReportTask  ReportKind = "task"        // DeliveryTaskComplete
	ReportSetup ReportKind = "environment" // DeliverySetupReady or DeliverySetupFailed, by the exit code
)

// Delivery is what the guest agent sends of a process that ended with that code.
func (k ReportKind) Delivery(exitCode int) DeliveryKind {
	switch {
	case k == ReportTask:
		return DeliveryTaskComplete
	case exitCode == 0:
		return DeliverySetupReady
	}
	return DeliverySetupFailed
}

// TerminalSize is in characters.
type TerminalSize struct {
	Columns uint16 `json:"columns"`
	Rows    uint16 `json:"rows"`
}

// Stream names one output of a process. A terminal has STDOUT only.
type Stream string

// The streams.
const (
	Stdout  Stream = "STDOUT"
	Stderr  Stream = "STDERR"
	Console Stream = "CONSOLE"
)

// OutputChunk is a part of a stream. Offset is of Data's first byte; where it is
// beyond what was asked for, what lay between is gone (spools are bounded).
type OutputChunk struct {
	Stream Stream `json:"stream"`
	Offset int64  `json:"offset"`
	Data   []byte `json:"data"`
}

// ReadOutput asks for output by offset, in bytes.
type ReadOutput struct {
	Process      ProcessID `json:"process"`
	StdoutOffset int64     `json:"stdout_offset"`
	StderrOffset int64     `json:"stderr_offset"`
	Follow       bool      `json:"follow"` // until the process ended and all was sent
}

// ProcessInput is written to a process's standard input or terminal. Offset is
// the count of bytes written before: a repeat at an offset already taken is
// dropped up to where the input stands, so that it is safe. Negative: append.
type ProcessInput struct {
	Process ProcessID `json:"process"`
	Offset  int64     `json:"offset"`
	Data    []byte    `json:"data,omitempty"`
	Close   bool      `json:"close,omitempty"`
}

// MaxProcessInput bounds one ProcessInput's data, in bytes.
const MaxProcessInput = 1 << 20

// GuestProcesses is the processes of one boot. The guest agent offers all of it
// (H11); a host agent answers the reading ones itself, from the spool, so that
// they work when the guest is frozen or gone.
type GuestProcesses interface {
	StartProcess(ctx context.Context, in StartProcess) (Process, error)
	GetProcess(ctx context.Context, id ProcessID) (Process, error)
	ListProcesses(ctx context.Context) ([]Process, error)
	// StreamProcessOutput yields chunks in order per stream and returns the
	// process as it was when the last was read.
	StreamProcessOutput(ctx context.Context, in ReadOutput, yield func(OutputChunk) error) (Process, error)
	WriteProcessInput(ctx context.Context, in ProcessInput) (offset int64, err error)
	SignalProcess(ctx context.Context, id ProcessID, signal string) error // "TERM", "KILL", "INT", …; to its process group
	ResizeTerminal(ctx context.Context, id ProcessID, size TerminalSize) error
}

// ProcessService is the same for callers, addressed by sandbox.
type ProcessService interface {
	StartProcess(ctx context.Context, caller Caller, sandbox SandboxID, in StartProcess) (Process, error)
	GetProcess(ctx context.Context, caller Caller, sandbox SandboxID, id ProcessID) (Process, error)
	ListProcesses(ctx context.Context, caller Caller, sandbox SandboxID) ([]Process, error)
	StreamProcessOutput(ctx context.Context, caller Caller, sandbox SandboxID, in ReadOutput, yield func(OutputChunk) error) (Process, error)
	WriteProcessInput(ctx context.Context, caller Caller, sandbox SandboxID, in ProcessInput) (offset int64, err error)
	SignalProcess(ctx context.Context, caller Caller, sandbox SandboxID, id ProcessID, signal string) error
	ResizeTerminal(ctx context.Context, caller Caller, sandbox SandboxID, id ProcessID, size TerminalSize) error
}
