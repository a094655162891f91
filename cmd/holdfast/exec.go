package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/client"
)

// execution is one command to run in a sandbox.
type execution struct {
	*app
	client  *client.Client
	sandbox holdfast.SandboxID
	start   holdfast.StartProcess
	tty     bool
	output  output
}

func newExecCommand(a *app) *cobra.Command {
	var start holdfast.StartProcess
	var env []string
	var tty, wait, stdin bool
	cmd := &cobra.Command{
		Use:   "exec ID -- COMMAND [ARGUMENT…]",
		Short: "Run a command in a sandbox; exits with its code",
		Long: `Run a command in a sandbox with live output, and exit with its code (128 + signal where a signal ended it).

Standard input is forwarded. ^C is sent to the command; a third one stops waiting, and the command runs on. With
--wait=false only the process's id is printed: holdfast sandbox wait follows it.

The start is never repeated by itself. Repeated by hand with the same --request-id, it is the same process.`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) < 2 {
				return usage("exec needs a sandbox's id and a command: holdfast sandbox exec ID -- COMMAND")
			}
			if err := holdfast.CheckID("ID", holdfast.PrefixSandbox, args[0]); err != nil {
				return err
			}
			var err error
			if start.Env, err = pairs("--env", env); err != nil {
				return err
			}
			if tty && !wait {
				return usage("--tty needs somebody to wait: leave --wait=false out")
			}
			c, err := a.connect()
			if err != nil {
				return err
			}
			start.Command, start.Args, start.Stdin = args[1], args[2:], stdin && wait
			start.RequestID = orWord(start.RequestID, client.NewRequestID())
			x := execution{app: a, client: c, sandbox: holdfast.SandboxID(args[0]), start: start, tty: tty, output: output{app: a}}
			if !wait {
				return x.detached(cmd.Context())
			}
			return x.attached(cmd.Context())
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&start.RequestID, "request-id", "", "names this start: repeated with it, it is the same process")
	flags.StringVar(&start.Cwd, "cwd", "", "the working directory (default the user's home)")
	flags.StringArrayVar(&env, "env", nil, "an environment variable, KEY=VALUE; may be repeated")
	flags.BoolVarP(&tty, "tty", "t", false, "give the command a terminal")
	flags.BoolVar(&stdin, "stdin", true, "forward standard input")
	flags.BoolVar(&wait, "wait", true, "follow the command to its end")
	return cmd
}

// detached starts the command and says which process it is.
func (x *execution) detached(ctx context.Context) error {
	p, err := x.client.StartProcess(ctx, x.sandbox, x.start)
	if err != nil {
		return err
	}
	if x.app.output == "json" {
		return x.json(p)
	}
	return write(x.out, []byte(string(p.ID)+"\n"))
}

// attached runs the command to its end.
func (x *execution) attached(ctx context.Context) error {
	ctx, giveUp := context.WithCancel(ctx)
	defer giveUp()
	signals := forwardSignals(ctx, giveUp, func(ctx context.Context, id holdfast.ProcessID, name string) error {
		return x.client.SignalProcess(ctx, x.sandbox, id, name)
	}, x.note)
	defer signals.stop()
	if x.tty {
		restore, err := x.takeTerminal()
		if err != nil {
			return err
		}
		defer restore()
	}
	var started holdfast.ProcessID
	var unsaid error
	p, err := x.client.Exec(ctx, x.sandbox, x.start, client.ExecIO{
		Stdin: x.in,
		Started: func(p holdfast.Process) {
			started = p.ID
			signals.to(p.ID)
			if x.tty {
				x.followSize(ctx, p.ID)
			}
			if x.app.output == "json" {
				unsaid = x.record("started", p)
			}
		},
		Output: x.output.take,
	})
	switch {
	case err == nil && unsaid != nil:
		return unsaid
	case err == nil:
		return x.output.finish(p)
	case started == "":
		return err
	}
	return x.output.interrupted(err, x.sandbox, started)
}

// takeTerminal gives the command a terminal of our terminal's size, and makes
// ours raw until restore.
func (x *execution) takeTerminal() (restore func(), err error) {
	x.start.Terminal, x.start.Stdin = &holdfast.TerminalSize{Columns: 80, Rows: 24}, true
	if fd, ok := terminal(x.out); ok {
		if size, ok := sizeOf(fd); ok {
			x.start.Terminal = &size
		}
	}
	fd, ok := terminal(x.in)
	if !ok {
		return func() {}, nil
	}
	before, err := term.MakeRaw(fd)
	if err != nil {
		return nil, fmt.Errorf("make the terminal raw: %w", err)
	}
	return func() {
		if err := term.Restore(fd, before); err != nil {
			x.note("the terminal could not be restored, reset does: " + err.Error())
		}
	}, nil
}

// followSize tells the command's terminal each new size of ours until ctx ends.
func (x *execution) followSize(ctx context.Context, id holdfast.ProcessID) {
	fd, ok := terminal(x.out)
	if !ok {
		return
	}
	changed := windowChanges(ctx)
	go func() {
		for range changed {
			size, ok := sizeOf(fd)
			if !ok {
				continue
			}
			// The next change tries again; the process may have ended meanwhile.
			_ = x.client.ResizeTerminal(ctx, x.sandbox, id, size)
		}
	}()
}

func sizeOf(fd int) (holdfast.TerminalSize, bool) {
	columns, rows, err := term.GetSize(fd)
	if err != nil || columns < 1 || rows < 1 || columns > 65535 || rows > 65535 {
		return holdfast.TerminalSize{}, false
	}
	return holdfast.TerminalSize{Columns: uint16(columns), Rows: uint16(rows)}, true
}
