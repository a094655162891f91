package main

import (
	"github.com/spf13/cobra"

	"github.com/holdfast-dev/holdfast/client"
)

func newSuspendCommand(a *app) *cobra.Command {
	return mutateCommand(a, "suspend", "Suspend a sandbox: its processes stop where they are", (*client.Client).SuspendSandbox)
}
