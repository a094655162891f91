package main

import (
	"context"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/client"
)

// newSandboxCommand is `holdfast sandbox`.
func newSandboxCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "sandbox",
		Aliases: []string{"sb"},
		Short:   "Create sandboxes, run commands in them, move files in and out",
		Args:    cobra.ArbitraryArgs,
		RunE:    needSubcommand,
	}
	cmd.AddCommand(
		newCreateCommand(a), newListCommand(a), newGetCommand(a), newSuspendCommand(a), newResumeCommand(a), newDeleteCommand(a), newForkCommand(a),
		newExtendCommand(a), newLifetimeCommand(a),
		newOperationsCommand(a), newExecCommand(a), newWaitCommand(a), newProcessesCommand(a), newKillCommand(a),
		newUploadCommand(a), newDownloadCommand(a), newLsCommand(a), newLogsCommand(a),
	)
	return cmd
}

// patiently connects a client that shows on a terminal what it waits for.
func (a *app) patiently(options ...client.Option) (*client.Client, error) {
	return a.connect(append(options, client.WithRetryNotice(a.retryNotice()))...)
}

// interruptible is a command's context, which the first ^C or SIGTERM ends so
// that the command can say how to go on; the second ends the command.
func interruptible(cmd *cobra.Command) (context.Context, context.CancelFunc) {
	ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	return ctx, stop
}

type mutation func(*client.Client, context.Context, holdfast.MutateSandbox) (holdfast.Sandbox, error)

// mutateCommand makes a command that suspends, resumes or deletes.
func mutateCommand(a *app, use, short string, call mutation) *cobra.Command {
	var generation int64
	cmd := &cobra.Command{
		Use:   use + " ID",
		Short: short,
		Args:  exactly("ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.patiently()
			if err != nil {
				return err
			}
			ctx, stop := interruptible(cmd)
			defer stop()
			s, err := call(c, ctx, holdfast.MutateSandbox{ID: holdfast.SandboxID(args[0]), IfGeneration: generation})
			if err != nil {
				return err
			}
			return a.sandbox(s)
		},
	}
	cmd.Flags().Int64Var(&generation, "if-generation", 0, "act only when the sandbox's generation is this one")
	return cmd
}
