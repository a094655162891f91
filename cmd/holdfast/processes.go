package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/holdfast-dev/holdfast"
)

func newProcessesCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "processes ID",
		Short: "List the processes that were started in a sandbox",
		Args:  exactly("ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := holdfast.CheckID("ID", holdfast.PrefixSandbox, args[0]); err != nil {
				return err
			}
			c, err := a.connect()
			if err != nil {
				return err
			}
			all, err := c.ListProcesses(cmd.Context(), holdfast.SandboxID(args[0]))
			if err != nil {
				return err
			}
			if a.output == "json" {
				return a.json(all)
			}
			rows := make([][]string, len(all))
			for i, p := range all {
				rows[i] = []string{string(p.ID), fmt.Sprint(p.PID), string(p.State), exitOf(p), stamp(p.StartedAt), stamp(p.FinishedAt),
					strings.Join(append([]string{p.Command}, p.Args...), " ")}
			}
			return a.table("ID PID STATE EXIT STARTED FINISHED COMMAND", rows)
		},
	}
}

func exitOf(p holdfast.Process) string {
	switch {
	case p.Lost:
		return "lost"
	case p.State != holdfast.ProcessExited:
		return "-"
	}
	return fmt.Sprint(p.ExitCode)
}
