package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/client"
)

func newCreateCommand(a *app) *cobra.Command {
	var in creation
	var checkpoint string
	cmd := &cobra.Command{
		Use:   "create [ENVIRONMENT]",
		Short: "Create a sandbox, or carry on the create of a request id",
		Long: `Create a sandbox and wait until it is READY. ENVIRONMENT is base, debian, or a base reference such as debian:bookworm.
With --from-checkpoint it is left out: the sandbox begins with what the checkpoint's source had on its disk, and with
its resources, egress and environment variables where none are given.

A create is named by its request id. Without --request-id one is made and printed on standard error before the first
call. The same command with that id is the same sandbox; without it, it is another.`,
		Args: func(cmd *cobra.Command, args []string) error {
			if checkpoint != "" && len(args) == 0 {
				return nil
			}
			return exactly("ENVIRONMENT")(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if in.Source = holdfast.CheckpointID(checkpoint); len(args) > 0 {
				in.Environment = args[0]
			}
			return in.run(cmd, a, func(ctx context.Context, c *client.Client, in holdfast.CreateSandbox) (holdfast.Sandbox, error) {
				return c.CreateSandbox(ctx, in)
			})
		},
	}
	in.flags(cmd)
	cmd.Flags().StringVar(&checkpoint, "from-checkpoint", "", "begin with what this checkpoint holds: ck-…")
	return cmd
}

// creation is what the flags of a create or a fork say.
type creation struct {
	holdfast.CreateSandbox
	labels, env               []string
	onExpiry, restart, egress string
}

func (in *creation) flags(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&in.RequestID, "request-id", "", "names this create; 1 to 128 visible ASCII characters")
	flags.StringVar(&in.Name, "name", "", "a name for people")
	flags.DurationVar(&in.TTL, "ttl", 0, "the lifetime, 1s to 24h (default 1h)")
	flags.StringVar(&in.onExpiry, "on-expiry", "", "what the lifetime's end brings: delete or suspend (default delete)")
	flags.StringVar(&in.restart, "restart", "", "what becomes of it when its instance is lost: none, fresh or from_checkpoint (default none)")
	flags.StringVar(&in.egress, "egress", "", "what it may reach: internet or none (default internet)")
	flags.StringArrayVar(&in.labels, "label", nil, "a label, KEY=VALUE; may be repeated")
	flags.StringArrayVar(&in.env, "env", nil, "an environment variable of every process, KEY=VALUE; may be repeated")
	flags.Int64Var(&in.Resources.CPUMillis, "cpu-millis", 0, "thousandths of a processor (default 1000)")
	flags.Int64Var(&in.Resources.MemoryBytes, "memory-bytes", 0, "bytes of memory (default 512 MiB)")
	flags.Int64Var(&in.Resources.PIDs, "pids", 0, "processes and threads (default 512)")
}

// run makes the call that the flags describe, and shows the sandbox.
func (in *creation) run(cmd *cobra.Command, a *app, call func(context.Context, *client.Client, holdfast.CreateSandbox) (holdfast.Sandbox, error)) error {
	var err error
	if in.Labels, err = pairs("--label", in.labels); err != nil {
		return err
	}
	if in.Env, err = pairs("--env", in.env); err != nil {
		return err
	}
	in.OnExpiry, in.Restart = holdfast.Expiry(strings.ToUpper(in.onExpiry)), holdfast.Restart(strings.ToUpper(in.restart))
	in.Egress = holdfast.Egress(strings.ToUpper(in.egress))
	if cmd.Flags().Changed("ttl") && in.TTL < holdfast.MinTTL {
		return usage("--ttl is %s; it must be between %s and %s", in.TTL, holdfast.MinTTL, holdfast.MaxTTL)
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
	s, err := call(ctx, c, in.CreateSandbox)
	if err != nil {
		return err
	}
	if err := a.sandbox(s); err != nil {
		return err
	}
	if s.State == holdfast.SandboxFailed {
		failure := s.Failure
		if failure == nil {
			failure = &holdfast.Failure{Reason: holdfast.ReasonCreateFailed, Message: "no reason is recorded"}
		}
		return hintError{fmt.Errorf("sandbox %s failed: %s (%s)", s.ID, failure.Message, failure.Reason),
			"see more: holdfast sandbox logs " + string(s.ID) + "; another request id makes another sandbox"}
	}
	return nil
}

// pairs reads KEY=VALUE flags.
func pairs(flag string, values []string) (map[string]string, error) {
	if len(values) == 0 {
		return nil, nil
	}
	out := map[string]string{}
	for _, v := range values {
		key, value, ok := strings.Cut(v, "=")
		if !ok || key == "" {
			return nil, usage("%s %q must be KEY=VALUE", flag, v)
		}
		if _, twice := out[key]; twice {
			return nil, usage("%s %s is given twice", flag, key)
		}
		out[key] = value
	}
	return out, nil
}
