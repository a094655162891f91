package main

import (
	"github.com/spf13/cobra"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/client"
)

func newTaskSubmitCommand(a *app) *cobra.Command {
	var in holdfast.SubmitTask
	var env []string
	var wait bool
	cmd := &cobra.Command{
		Use:   "submit SESSION -- COMMAND [ARGUMENT…]",
		Short: "Queue a command in a session, which is resumed if it sleeps",
		Long: `Queue a command in a session. Tasks run one at a time, in order, each at most once.

A submit is named by its request id. Without --request-id one is made and printed on standard error before the first
call. The same command with that id is the same task; without it, it is another.

With --wait its output is followed, and the exit code is the task's.`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) < 2 {
				return usage("submit needs a session's id and a command: holdfast task submit SESSION -- COMMAND")
			}
			var err error
			if in.Env, err = pairs("--env", env); err != nil {
				return err
			}
			if cmd.Flags().Changed("limit") && in.Limit < holdfast.MinTaskLimit {
				return usage("--limit is %s; it must be between %s and %s", in.Limit, holdfast.MinTaskLimit, holdfast.MaxTaskLimit)
			}
			if cmd.Flags().Changed("request-id") {
				if err := holdfast.CheckRequestID("--request-id", in.RequestID); err != nil {
					return err
				}
			}
			in.Session, in.Command, in.Args = holdfast.SessionID(args[0]), args[1], args[2:]
			c, err := a.patiently(client.WithMintedRequestID(a.showRequestID))
			if err != nil {
				return err
			}
			ctx, stop := interruptible(cmd)
			defer stop()
			t, err := c.SubmitTask(ctx, in)
			if err != nil {
				return err
			}
			if !wait {
				return a.task(t)
			}
			if a.output == "json" {
				if err := a.record("submitted", t); err != nil {
					return err
				}
			}
			return (&taskOutput{output{app: a}}).run(cmd, c, holdfast.TaskOutput{ID: t.ID, Follow: true})
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&in.RequestID, "request-id", "", "names this submit; 1 to 128 visible ASCII characters")
	flags.StringVar(&in.Cwd, "cwd", "", "the working directory (default the user's home)")
	flags.StringArrayVar(&env, "env", nil, "an environment variable, KEY=VALUE; may be repeated")
	flags.DurationVar(&in.Limit, "limit", 0, "how long it may run, 1s to 168h (default 1h)")
	flags.BoolVar(&wait, "wait", false, "follow its output, and exit with its code")
	return cmd
}
