package main

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/holdfast-dev/holdfast"
)

func newSessionListCommand(a *app) *cobra.Command {
	in := holdfast.ListSessions{PageSize: holdfast.MaxPageSize}
	var labels, states []string
	var all bool
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the sessions that are not deleted, the newest first",
		Args:  exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			var err error
			if in.Labels, err = pairs("--label", labels); err != nil {
				return err
			}
			for _, name := range states {
				in.States = append(in.States, holdfast.SessionState(strings.ToUpper(name)))
			}
			if all && len(states) == 0 {
				in.States = []holdfast.SessionState{holdfast.SessionWaiting, holdfast.SessionCreating, holdfast.SessionReady,
					holdfast.SessionSuspended, holdfast.SessionFailed, holdfast.SessionDeleting, holdfast.SessionDeleted}
			}
			if err := in.Validate(); err != nil {
				return err
			}
			c, err := a.connect()
			if err != nil {
				return err
			}
			var out holdfast.SessionPage
			for {
				page, err := c.ListSessions(cmd.Context(), in)
				if err != nil {
					return err
				}
				out.Sessions = append(out.Sessions, page.Sessions...)
				if in.PageToken = page.NextPageToken; in.PageToken == "" {
					return a.sessions(out)
				}
			}
		},
	}
	flags := cmd.Flags()
	flags.BoolVar(&all, "all", false, "deleted ones too, while their tombstones are kept")
	flags.StringSliceVar(&states, "state", nil, "only these states: ready, suspended, …")
	flags.StringArrayVar(&labels, "label", nil, "only with this label, KEY=VALUE; may be repeated")
	return cmd
}
