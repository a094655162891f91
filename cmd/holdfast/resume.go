package main

import (
	"github.com/spf13/cobra"

	"github.com/holdfast-dev/holdfast/client"
)

func newResumeCommand(a *app) *cobra.Command {
	return mutateCommand(a, "resume", "Resume a suspended sandbox: its processes go on", (*client.Client).ResumeSandbox)
}
