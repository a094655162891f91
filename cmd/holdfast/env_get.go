package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/holdfast-dev/holdfast"
)

func newEnvGetCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "get NAME",
		Short: "Show an environment's recipe, of its newest version or of NAME@VERSION",
		Args:  exactly("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			e, err := c.GetEnvironment(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			if a.output == "json" {
				return a.json(e)
			}
			// What is being built, if anything is: the newest build of any version.
			page, err := c.ListBuilds(cmd.Context(), holdfast.ListBuilds{Environment: e.Name, PageSize: 1})
			if err != nil {
				return err
			}
			return a.table("", append(describeEnvironment(e), describePending(page.Builds)...))
		},
	}
}

// describeEnvironment says everything about an environment, by line.
func describeEnvironment(e holdfast.Environment) [][]string {
	r := e.Recipe
	rows := [][]string{
		{"Name", e.Name},
		{"Version", fmt.Sprint(e.Version)},
		{"Project", dash(string(e.Project))},
		{"Build", dash(string(e.Build))},
		{"Base", r.Base},
		{"Workdir", dash(r.Workdir)},
		{"User", dash(r.User)},
		{"Env", dash(joined(r.Env))},
		{"Egress", dash(string(r.Egress))},
		{"Restart", dash(string(r.Restart))},
		{"Created", stamp(e.CreatedAt)},
		{"Updated", stamp(e.UpdatedAt)},
		{"Deleted", stamp(e.DeletedAt)},
	}
	for _, f := range r.Files {
		rows = append(rows, []string{"File", fmt.Sprintf("%s, %d bytes", f.Path, len(f.Content))})
	}
	for _, script := range []struct{ name, text string }{
		{"Setup", r.Setup}, {"On suspend", r.Hooks.OnSuspend}, {"On resume", r.Hooks.OnResume}, {"On delete", r.Hooks.OnDelete},
	} {
		for line := range strings.Lines(script.text) {
			rows = append(rows, []string{script.name, line})
		}
	}
	if r.Repository != nil {
		rows = append(rows, []string{"Repository", strings.TrimSpace(r.Repository.URL + " " + r.Repository.Ref)})
	}
	return rows
}

// describePending says why builds are not done yet, or did not get done.
func describePending(builds []holdfast.Build) (rows [][]string) {
	for _, b := range builds {
		what := fmt.Sprintf("%s of version %d: ", b.ID, b.Version)
		switch {
		case b.Operation != nil:
			rows = append(rows, []string{"Building", what + pending(b.Operation)}, []string{"Next", b.Operation.Next})
			if e := b.Operation.LastError; e != nil {
				rows = append(rows, []string{"Trouble", fmt.Sprintf("%s (%s)", e.Message, e.Reason)})
			}
		case b.Failure != nil:
			rows = append(rows, []string{"Failed", what + fmt.Sprintf("%s (%s)", b.Failure.Message, b.Failure.Reason)})
		}
	}
	return rows
}
