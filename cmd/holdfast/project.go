package main

import (
	"fmt"
	"strconv"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/holdfast-dev/holdfast"
)

// newProjectCommand is `holdfast project`.
func newProjectCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "project",
		Short: "Create projects, list them, see and set their quotas",
		Args:  cobra.ArbitraryArgs,
		RunE:  needSubcommand,
	}
	cmd.AddCommand(newProjectCreateCommand(a), newProjectListCommand(a), newProjectQuotaCommand(a))
	return cmd
}

// unlimited is how a quota is called that limits nothing.
const unlimited = "unlimited"

// quotaFlag is a flag for one quota: a number, or unlimited.
type quotaFlag struct{ into **int64 }

// String is empty: there is no default to show.
func (quotaFlag) String() string { return "" }

// Type is what the help shows.
func (quotaFlag) Type() string { return "number|" + unlimited }

// Set reads the flag's value.
func (q quotaFlag) Set(text string) error {
	if text == unlimited {
		*q.into = new(holdfast.NoLimit)
		return nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 {
		return fmt.Errorf("it must be a number, 0 or more, or %s", unlimited)
	}
	*q.into = &n
	return nil
}

// quotaFlags adds the flags of a change of quotas.
func quotaFlags(flags *pflag.FlagSet, change *holdfast.QuotaChange) {
	flags.Var(quotaFlag{&change.Sandboxes}, "sandboxes", "sandboxes at once")
	flags.Var(quotaFlag{&change.CPUMillis}, "cpu-millis", "thousandths of a processor that they may hold together")
	flags.Var(quotaFlag{&change.MemoryBytes}, "memory-bytes", "bytes of memory that they may hold together")
}

// project writes one project.
func (a *app) project(p holdfast.Project) error {
	if a.output == "json" {
		return a.json(p)
	}
	return a.projects(holdfast.ProjectPage{Projects: []holdfast.Project{p}})
}

// projects writes a list of them, each with what it holds of each quota.
func (a *app) projects(page holdfast.ProjectPage) error {
	if a.output == "json" {
		return a.json(page)
	}
	rows := make([][]string, len(page.Projects))
	for i, p := range page.Projects {
		rows[i] = []string{string(p.ID), p.Name, used(p.Usage.Sandboxes, p.Quotas.Sandboxes), used(p.Usage.CPUMillis, p.Quotas.CPUMillis),
			used(p.Usage.MemoryBytes, p.Quotas.MemoryBytes), ago(p.CreatedAt)}
	}
	return a.table("ID NAME SANDBOXES CPU-MILLIS MEMORY-BYTES CREATED", rows)
}

func used(held, quota int64) string {
	if quota == holdfast.NoLimit {
		return fmt.Sprintf("%d/%s", held, unlimited)
	}
	return fmt.Sprintf("%d/%d", held, quota)
}
