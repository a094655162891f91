package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/holdfast-dev/holdfast"
)

func newEventsCommand(a *app) *cobra.Command {
	var in holdfast.StreamEvents
	cmd := &cobra.Command{
		Use:   "events",
		Short: "Show what happened to the project's resources",
		Long: `Show what happened to the project's resources, in order. The first call makes the project record it, from then on; events
are kept for 7 days, and recorded for 7 days after somebody last asked, or for as long as there is a webhook. With -o json there
is one event a line; its cursor goes into --after, to go on behind it.

The kinds:` + kindsHelp(),
		Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := in.Validate(); err != nil {
				return err
			}
			c, err := a.connect()
			if err != nil {
				return err
			}
			return c.StreamEvents(cmd.Context(), in, func(e holdfast.Event) error {
				if a.output == "json" {
					return a.json(e)
				}
				return write(a.out, fmt.Appendf(nil, "%-8s %s  %-20s %s\n", e.Cursor, stamp(e.At), oneLine(string(e.Kind)), oneLine(e.Resource)))
			})
		},
	}
	flags := cmd.Flags()
	flags.BoolVar(&in.Follow, "follow", false, "go on with those to come")
	flags.StringVar(&in.After, "after", "", "only what is behind this cursor")
	flags.StringSliceVar(&in.Kinds, "kind", nil, "only these kinds, such as task.succeeded or session.*; may be given more than once")
	return cmd
}

// kindsHelp lists the kinds of events, a line for each type of resource.
func kindsHelp() string {
	var b strings.Builder
	last := ""
	for _, kind := range holdfast.EventKinds() {
		of, word, _ := strings.Cut(string(kind), ".")
		if of != last {
			b.WriteString("\n  " + of + ".")
			last = of
		} else {
			b.WriteString(", .")
		}
		b.WriteString(word)
	}
	return b.String()
}
