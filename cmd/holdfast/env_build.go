package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/client"
)

func newEnvBuildCommand(a *app) *cobra.Command {
	var in holdfast.BuildEnvironment
	var wait bool
	cmd := &cobra.Command{
		Use:   "build NAME",
		Short: "Build an environment, showing its log, and wait for the end",
		Long: `Build the newest version of an environment, or NAME@VERSION. The setup's output goes to standard error, the build to
standard output. A build goes on by itself: whoever stops waiting can follow it again with holdfast env logs.

A build is named by its request id. Without --request-id one is made and printed on standard error before the first
call. The same command with that id is the same build.`,
		Args: exactly("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			in.Environment = args[0]
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
			b, err := c.BuildEnvironment(ctx, in)
			if err != nil {
				return err
			}
			if wait {
				if b, err = a.awaitBuild(ctx, c, b); err != nil {
					return hintError{err, "it goes on by itself: holdfast env logs --follow " + string(b.ID)}
				}
			}
			if err := a.build(b); err != nil {
				return err
			}
			return buildFailed(b)
		},
	}
	cmd.Flags().StringVar(&in.RequestID, "request-id", "", "names this build; 1 to 128 visible ASCII characters")
	cmd.Flags().BoolVar(&wait, "wait", true, "show the log, and wait for the end")
	return cmd
}

// buildLook is how often a waiting command looks whether a build has ended.
const buildLook = 300 * time.Millisecond

// awaitBuild shows a build's log and waits for its end.
func (a *app) awaitBuild(ctx context.Context, c *client.Client, b holdfast.Build) (holdfast.Build, error) {
	err := c.StreamBuildLog(ctx, holdfast.BuildLog{ID: b.ID, Follow: b.State == holdfast.BuildBuilding}, func(chunk holdfast.OutputChunk) error {
		return write(a.err, chunk.Data)
	})
	if err != nil {
		return b, err
	}
	tick := time.NewTicker(buildLook)
	defer tick.Stop()
	for {
		seen, err := c.GetBuild(ctx, b.ID)
		if err != nil || seen.State != holdfast.BuildBuilding {
			if err == nil {
				b = seen
			}
			return b, err
		}
		select {
		case <-ctx.Done():
			return b, ctx.Err()
		case <-tick.C:
		}
	}
}

// buildFailed says why a build is not READY, by the exit code too.
func buildFailed(b holdfast.Build) error {
	switch b.State {
	case holdfast.BuildFailed:
		failure := b.Failure
		if failure == nil {
			failure = &holdfast.Failure{Reason: holdfast.ReasonBuildFailed, Message: "no reason is recorded"}
		}
		return hintError{fmt.Errorf("build %s failed: %s (%s)", b.ID, failure.Message, failure.Reason),
			"see its log: holdfast env logs " + string(b.ID) + "; another request id makes another build"}
	case holdfast.BuildSuperseded:
		return hintError{fmt.Errorf("build %s gave way to a newer one", b.ID), "see which: holdfast env builds " + b.Name}
	}
	return nil
}
