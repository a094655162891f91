package main

import (
	"github.com/spf13/cobra"

	"github.com/holdfast-dev/holdfast/client"
)

func newDeleteCommand(a *app) *cobra.Command {
	return mutateCommand(a, "delete", "Delete a sandbox in any state; one that is not there is as wanted", (*client.Client).DeleteSandbox)
}
