package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/holdfast-dev/holdfast"
)

func newCheckpointGetCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "get ID",
		Short: "Show a checkpoint, what is pending on it, and what is safe to do next",
		Args:  exactly("ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := holdfast.CheckID("ID", holdfast.PrefixCheckpoint, args[0]); err != nil {
				return err
			}
			c, err := a.connect()
			if err != nil {
				return err
			}
			found, err := c.GetCheckpoint(cmd.Context(), holdfast.CheckpointID(args[0]))
			if err != nil {
				return err
			}
			if a.output == "json" {
				return a.json(found)
			}
			return a.table("", describeCheckpoint(found))
		},
	}
}

// describeCheckpoint says everything about a checkpoint, by line.
func describeCheckpoint(c holdfast.Checkpoint) [][]string {
	rows := [][]string{
		{"ID", string(c.ID)},
		{"Project", dash(string(c.Project))},
		{"Creator", dash(c.Creator)},
		{"Source", dash(c.Source)},
		{"Sandbox", dash(string(c.Sandbox))},
		{"Environment", dash(c.Environment)},
		{"State", string(c.State)},
		{"Size", fmt.Sprintf("%d bytes", c.Size)},
		{"SHA-256", dash(c.SHA256)},
		{"Labels", dash(joined(c.Labels))},
		{"Created", stamp(c.CreatedAt)},
		{"Updated", stamp(c.UpdatedAt)},
		{"Deleted", stamp(c.DeletedAt)},
	}
	if c.Failure != nil {
		rows = append(rows, []string{"Failure", fmt.Sprintf("%s: %s", c.Failure.Reason, c.Failure.Message)})
	}
	if c.Operation == nil {
		return append(rows, []string{"Pending", "nothing"})
	}
	return append(rows, describeOperation(*c.Operation)...)
}
