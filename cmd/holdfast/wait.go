package main

import (
	"github.com/spf13/cobra"

	"github.com/holdfast-dev/holdfast"
)

func newWaitCommand(a *app) *cobra.Command {
	in := holdfast.ReadOutput{Follow: true}
	cmd := &cobra.Command{
		Use:   "wait ID PROCESS",
		Short: "Follow a process to its end; exits with its code",
		Args:  exactly("ID", "PROCESS"),
		RunE: func(cmd *cobra.Command, args []string) error {
			sandbox := holdfast.SandboxID(args[0])
			in.Process = holdfast.ProcessID(args[1])
			if err := holdfast.CheckID("ID", holdfast.PrefixSandbox, args[0]); err != nil {
				return err
			}
			c, err := a.connect()
			if err != nil {
				return err
			}
			ctx, stop := interruptible(cmd)
			defer stop()
			out := output{app: a, stdout: in.StdoutOffset, stderr: in.StderrOffset}
			p, err := c.StreamProcessOutput(ctx, sandbox, in, out.take)
			switch holdfast.CodeOf(err) {
			case "":
				return out.finish(p)
			case holdfast.Unavailable, holdfast.DeadlineExceeded, holdfast.Cancelled:
				return out.interrupted(err, sandbox, in.Process)
			}
			return err
		},
	}
	cmd.Flags().Int64Var(&in.StdoutOffset, "stdout-offset", 0, "the first byte of standard output wanted")
	cmd.Flags().Int64Var(&in.StderrOffset, "stderr-offset", 0, "the first byte of standard error wanted")
	return cmd
}
