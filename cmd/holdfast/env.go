package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/client"
)

// newEnvCommand is `holdfast env`.
func newEnvCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "env",
		Aliases: []string{"environment"},
		Short:   "Create environments from recipes, build them, see their logs",
		Args:    cobra.ArbitraryArgs,
		RunE:    needSubcommand,
	}
	cmd.AddCommand(newEnvCreateCommand(a), newEnvBuildCommand(a), newEnvListCommand(a), newEnvGetCommand(a),
		newEnvBuildsCommand(a), newEnvLogsCommand(a), newEnvOperationsCommand(a), newEnvDeleteCommand(a))
	return cmd
}

// environment writes one environment.
func (a *app) environment(e holdfast.Environment) error {
	if a.output == "json" {
		return a.json(e)
	}
	return a.environments(holdfast.EnvironmentPage{Environments: []holdfast.Environment{e}})
}

// environments writes a list of them.
func (a *app) environments(page holdfast.EnvironmentPage) error {
	if a.output == "json" {
		return a.json(page)
	}
	rows := make([][]string, len(page.Environments))
	for i, e := range page.Environments {
		rows[i] = []string{e.Name, fmt.Sprint(e.Version), dash(string(e.Build)), ago(e.CreatedAt), ago(e.UpdatedAt)}
	}
	return a.table("NAME VERSION BUILD CREATED UPDATED", rows)
}

// build writes one build.
func (a *app) build(b holdfast.Build) error {
	if a.output == "json" {
		return a.json(b)
	}
	return a.builds(holdfast.BuildPage{Builds: []holdfast.Build{b}})
}

// builds writes a list of them.
func (a *app) builds(page holdfast.BuildPage) error {
	if a.output == "json" {
		return a.json(page)
	}
	rows := make([][]string, len(page.Builds))
	for i, b := range page.Builds {
		took := "-"
		if !b.FinishedAt.IsZero() {
			took = rounded(b.FinishedAt.Sub(b.CreatedAt))
		}
		rows[i] = []string{string(b.ID), fmt.Sprintf("%s@%d", b.Name, b.Version), string(b.State), pending(b.Operation), ago(b.CreatedAt), took}
	}
	return a.table("ID ENVIRONMENT STATE PENDING CREATED TOOK", rows)
}

// buildID is the id of a build, or of the newest one of an environment that is named.
func buildID(ctx context.Context, c *client.Client, reference string) (holdfast.BuildID, error) {
	if strings.HasPrefix(reference, holdfast.PrefixBuild+"-") {
		return holdfast.BuildID(reference), holdfast.CheckID("ID", holdfast.PrefixBuild, reference)
	}
	page, err := c.ListBuilds(ctx, holdfast.ListBuilds{Environment: reference, PageSize: 1})
	if err != nil {
		return "", err
	}
	if len(page.Builds) == 0 {
		return "", hintError{fmt.Errorf("environment %s has no build", reference), "holdfast env build " + reference}
	}
	return page.Builds[0].ID, nil
}
