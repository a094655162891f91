package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/holdfast-dev/holdfast"
)

// newCheckpointCommand is `holdfast checkpoint`.
func newCheckpointCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "checkpoint",
		Aliases: []string{"ck"},
		Short:   "Keep what a sandbox has on its disk, to make others from it",
		Args:    cobra.ArbitraryArgs,
		RunE:    needSubcommand,
	}
	cmd.AddCommand(newCheckpointCreateCommand(a), newCheckpointListCommand(a), newCheckpointGetCommand(a), newCheckpointDeleteCommand(a))
	return cmd
}

// checkpoint writes one checkpoint.
func (a *app) checkpoint(c holdfast.Checkpoint) error {
	if a.output == "json" {
		return a.json(c)
	}
	return a.checkpoints(holdfast.CheckpointPage{Checkpoints: []holdfast.Checkpoint{c}})
}

// checkpoints writes a list of them.
func (a *app) checkpoints(page holdfast.CheckpointPage) error {
	if a.output == "json" {
		return a.json(page)
	}
	rows := make([][]string, len(page.Checkpoints))
	for i, c := range page.Checkpoints {
		rows[i] = []string{string(c.ID), dash(c.Source), dash(c.Environment), string(c.State), pending(c.Operation), fmt.Sprint(c.Size), ago(c.CreatedAt)}
	}
	return a.table("ID SOURCE ENVIRONMENT STATE PENDING SIZE CREATED", rows)
}

// failed is the end of a command that made a checkpoint which is FAILED.
func failed(c holdfast.Checkpoint) error {
	failure := c.Failure
	if failure == nil {
		failure = &holdfast.Failure{Reason: holdfast.ReasonCheckpointFailed, Message: "no reason is recorded"}
	}
	return hintError{fmt.Errorf("checkpoint %s failed: %s (%s)", c.ID, failure.Message, failure.Reason), "another request id takes another checkpoint"}
}
