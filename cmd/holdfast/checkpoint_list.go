package main

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/holdfast-dev/holdfast"
)

func newCheckpointListCommand(a *app) *cobra.Command {
	in := holdfast.ListCheckpoints{PageSize: holdfast.MaxPageSize}
	var labels, states []string
	var all bool
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the checkpoints that are not deleted, the newest first",
		Args:  exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			var err error
			if in.Labels, err = pairs("--label", labels); err != nil {
				return err
			}
			for _, name := range states {
				in.States = append(in.States, holdfast.CheckpointState(strings.ToUpper(name)))
			}
			if all && len(states) == 0 {
				in.States = []holdfast.CheckpointState{holdfast.CheckpointCreating, holdfast.CheckpointReady, holdfast.CheckpointFailed,
					holdfast.CheckpointDeleting, holdfast.CheckpointDeleted}
			}
			if err := in.Validate(); err != nil {
				return err
			}
			c, err := a.connect()
			if err != nil {
				return err
			}
			var out holdfast.CheckpointPage
			for {
				page, err := c.ListCheckpoints(cmd.Context(), in)
				if err != nil {
					return err
				}
				out.Checkpoints = append(out.Checkpoints, page.Checkpoints...)
				if in.PageToken = page.NextPageToken; in.PageToken == "" {
					return a.checkpoints(out)
				}
			}
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&in.Source, "source", "", "only of this sandbox or session")
	flags.BoolVar(&all, "all", false, "deleted ones too, while their tombstones are kept")
	flags.StringSliceVar(&states, "state", nil, "only these states: ready, failed, …")
	flags.StringArrayVar(&labels, "label", nil, "only with this label, KEY=VALUE; may be repeated")
	return cmd
}
