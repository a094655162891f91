package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/client"
)

func newSessionCreateCommand(a *app) *cobra.Command {
	var in sessionCreation
	var checkpoint string
	cmd := &cobra.Command{
		Use:   "create [ENVIRONMENT]",
		Short: "Create a session, or carry on the create of a request id",
		Long: `Create a session and wait until it is READY; an environment that is being built is waited for. ENVIRONMENT is the
name of one, base, debian, or a base reference such as debian:bookworm. --from-checkpoint makes it a fork instead.

A create is named by its request id. Without --request-id one is made and printed on standard error before the first
call. The same command with that id is the same session; without it, it is another.`,
		Args: func(cmd *cobra.Command, args []string) error {
			if checkpoint != "" {
				return exactly()(cmd, args)
			}
			return exactly("ENVIRONMENT")(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if in.Source = holdfast.CheckpointID(checkpoint); len(args) > 0 {
				in.Environment = args[0]
			}
			return in.run(cmd, a, func(ctx context.Context, c *client.Client, in holdfast.CreateSession) (holdfast.Session, error) {
				return c.CreateSession(ctx, in)
			})
		},
	}
	in.flags(cmd)
	cmd.Flags().StringVar(&checkpoint, "from-checkpoint", "", "begin with what this checkpoint holds: ck-…")
	return cmd
}

func newSessionForkCommand(a *app) *cobra.Command {
	var in sessionCreation
	cmd := &cobra.Command{
		Use:   "fork ID",
		Short: "Create a session that begins with what another has on its disk",
		Long: `Create a session that begins with what another has on its disk, and none of its tasks, and wait until it is READY.
The other goes on as it is.

A fork is named by its request id, as a create is: the same command with that id is the same fork.`,
		Args: exactly("ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return in.run(cmd, a, func(ctx context.Context, c *client.Client, in holdfast.CreateSession) (holdfast.Session, error) {
				return c.ForkSession(ctx, holdfast.SessionID(args[0]), in)
			})
		},
	}
	in.flags(cmd)
	return cmd
}

// sessionCreation is what the flags of a create or a fork say.
type sessionCreation struct {
	holdfast.CreateSession
	labels, env     []string
	restart, egress string
	repository      holdfast.Repository
}

func (in *sessionCreation) flags(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&in.RequestID, "request-id", "", "names this create; 1 to 128 visible ASCII characters")
	flags.StringVar(&in.Name, "name", "", "a name for people")
	flags.DurationVar(&in.Idle, "idle", 0, "suspend it after so long without activity, 1s to 168h (default 1h)")
	flags.StringVar(&in.restart, "restart", "", "what becomes of it when its instance is lost: none, fresh or from_checkpoint (default the environment's)")
	flags.StringVar(&in.egress, "egress", "", "what it may reach: internet or none (default the environment's)")
	flags.StringArrayVar(&in.labels, "label", nil, "a label, KEY=VALUE; may be repeated")
	flags.StringArrayVar(&in.env, "env", nil, "an environment variable of every process, KEY=VALUE; may be repeated")
	flags.Int64Var(&in.Resources.CPUMillis, "cpu-millis", 0, "thousandths of a processor (default the environment's)")
	flags.Int64Var(&in.Resources.MemoryBytes, "memory-bytes", 0, "bytes of memory (default the environment's)")
	flags.Int64Var(&in.Resources.PIDs, "pids", 0, "processes and threads (default the environment's)")
	flags.StringVar(&in.repository.URL, "repository", "", "a git repository to fetch into the workspace before the first task")
	flags.StringVar(&in.repository.Ref, "ref", "", "with --repository: a branch, tag or commit")
}

// run makes the call that the flags describe, and shows the session.
func (in *sessionCreation) run(cmd *cobra.Command, a *app, call func(context.Context, *client.Client, holdfast.CreateSession) (holdfast.Session, error)) error {
	var err error
	if in.Labels, err = pairs("--label", in.labels); err != nil {
		return err
	}
	if in.Env, err = pairs("--env", in.env); err != nil {
		return err
	}
	in.Restart, in.Egress = holdfast.Restart(strings.ToUpper(in.restart)), holdfast.Egress(strings.ToUpper(in.egress))
	if in.repository != (holdfast.Repository{}) {
		in.Repository = &in.repository
	}
	if cmd.Flags().Changed("idle") && in.Idle < holdfast.MinIdle {
		return usage("--idle is %s; it must be between %s and %s", in.Idle, holdfast.MinIdle, holdfast.MaxIdle)
	}
	if cmd.Flags().Changed("request-id") {
		if err := holdfast.CheckRequestID("--request-id", in.RequestID); err != nil {
			return err
		}
	}
	c, err := a.patiently(client.WithMintedRequestID(a.showRequestID))
	if err != nil {
		return err
	}
	ctx, stop := interruptible(cmd)
	defer stop()
	s, err := call(ctx, c, in.CreateSession)
	if err != nil {
		return err
	}
	if err := a.session(s); err != nil {
		return err
	}
	if s.State == holdfast.SessionFailed {
		failure := s.Failure
		if failure == nil {
			failure = &holdfast.Failure{Reason: holdfast.ReasonCreateFailed, Message: "no reason is recorded"}
		}
		return hintError{fmt.Errorf("session %s failed: %s (%s)", s.ID, failure.Message, failure.Reason),
			"see more: holdfast session get " + string(s.ID) + "; another request id makes another session"}
	}
	return nil
}
