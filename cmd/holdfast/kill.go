package main

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/holdfast-dev/holdfast"
)

func newKillCommand(a *app) *cobra.Command {
	var signal string
	cmd := &cobra.Command{
		Use:   "kill ID PROCESS",
		Short: "Send a signal to a process and its group",
		Args:  exactly("ID", "PROCESS"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := holdfast.CheckID("ID", holdfast.PrefixSandbox, args[0]); err != nil {
				return err
			}
			c, err := a.connect()
			if err != nil {
				return err
			}
			name := strings.TrimPrefix(strings.ToUpper(signal), "SIG")
			return c.SignalProcess(cmd.Context(), holdfast.SandboxID(args[0]), holdfast.ProcessID(args[1]), name)
		},
	}
	cmd.Flags().StringVar(&signal, "signal", "TERM", "the signal's name")
	return cmd
}
