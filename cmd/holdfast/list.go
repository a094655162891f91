package main

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/holdfast-dev/holdfast"
)

func newListCommand(a *app) *cobra.Command {
	var in holdfast.ListSandboxes
	var labels, states []string
	var after string
	var all, watch bool
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the sandboxes that are not deleted",
		Long: `List the sandboxes that are not deleted, by id.

With --watch they are followed: a line for each sandbox, then one for each change, until ^C. JSON lines have the
version, and "sandbox"; --after goes on after one.

All pages are read, unless --page-size or --page-token asks for one; JSON then has the nextPageToken.`,
		Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			var err error
			if in.Labels, err = pairs("--label", labels); err != nil {
				return err
			}
			if watch {
				for _, other := range []string{"state", "label", "all", "page-size", "page-token"} {
					if cmd.Flags().Changed(other) {
						return usage("--watch shows every change of every sandbox, so --%s does not go with it", other)
					}
				}
				return watchSandboxes(cmd, a, after)
			}
			in.States = wantedStates(states, all)
			onePage := cmd.Flags().Changed("page-size") || cmd.Flags().Changed("page-token")
			return listSandboxes(cmd, a, in, onePage)
		},
	}
	flags := cmd.Flags()
	flags.BoolVarP(&watch, "watch", "w", false, "show each change from now on, deletions too")
	flags.StringVar(&after, "after", "", "with --watch: only what changed after this version")
	flags.BoolVar(&all, "all", false, "deleted ones too, while their tombstones are kept")
	flags.StringSliceVar(&states, "state", nil, "only these states: ready, suspended, …")
	flags.StringArrayVar(&labels, "label", nil, "only with this label, KEY=VALUE; may be repeated")
	flags.IntVar(&in.PageSize, "page-size", 0, "one page of at most so many")
	flags.StringVar(&in.PageToken, "page-token", "", "the page after the one that returned this nextPageToken")
	return cmd
}

func wantedStates(named []string, all bool) []holdfast.SandboxState {
	var states []holdfast.SandboxState
	for _, name := range named {
		states = append(states, holdfast.SandboxState(strings.ToUpper(name)))
	}
	if len(states) > 0 || all {
		return states
	}
	return []holdfast.SandboxState{
		holdfast.SandboxCreating, holdfast.SandboxReady, holdfast.SandboxSuspended, holdfast.SandboxFailed, holdfast.SandboxDeleting,
	}
}

func listSandboxes(cmd *cobra.Command, a *app, in holdfast.ListSandboxes, onePage bool) error {
	if err := in.Validate(); err != nil {
		return err
	}
	c, err := a.connect()
	if err != nil {
		return err
	}
	if !onePage {
		in.PageSize = holdfast.MaxPageSize
	}
	var out holdfast.SandboxPage
	for {
		page, err := c.ListSandboxes(cmd.Context(), in)
		if err != nil {
			return err
		}
		out.Sandboxes = append(out.Sandboxes, page.Sandboxes...)
		if onePage {
			out.NextPageToken = page.NextPageToken
		}
		if onePage || page.NextPageToken == "" {
			return a.sandboxes(out)
		}
		in.PageToken = page.NextPageToken
	}
}

// watchSandboxes writes a line for each event, until ^C.
func watchSandboxes(cmd *cobra.Command, a *app, after string) error {
	c, err := a.patiently()
	if err != nil {
		return err
	}
	ctx, stop := interruptible(cmd)
	defer stop()
	err = c.WatchSandboxes(ctx, holdfast.WatchSandboxes{After: after}, func(e holdfast.SandboxEvent) error {
		switch {
		case e.Anew && a.output == "json":
			return write(a.out, []byte("{\"anew\":true}\n"))
		case e.Anew: // the notice on standard error says why
			return nil
		case a.output == "json":
			return a.json(e)
		case e.Sandbox == nil:
			return nil
		}
		s := *e.Sandbox
		return a.table("", [][]string{{string(s.ID), dash(s.Name), dash(s.Environment), string(s.State), pending(s.Operation), expires(s)}})
	})
	if ctx.Err() != nil {
		return nil // who watches ends it so
	}
	return err
}
