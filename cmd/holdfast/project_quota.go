package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/holdfast-dev/holdfast"
)

func newProjectQuotaCommand(a *app) *cobra.Command {
	var in holdfast.SetQuotas
	cmd := &cobra.Command{
		Use:   "quota PROJECT",
		Short: "Show what a project holds of its quotas, or set them",
		Long: `Show what a project, by its id or name, holds of its quotas; with flags, set those first.

A sandbox is counted from its create until it is DELETED or FAILED. One that is DELETING has its processors and memory
until its host confirms the end, and is counted so long: holdfast sandbox list --state deleting shows those. What is
held beyond a new quota is kept; nothing more is created until less is held.`,
		Args: exactly("PROJECT"),
		RunE: func(cmd *cobra.Command, args []string) error {
			in.Project = args[0]
			if err := in.Validate(); err != nil {
				return err
			}
			c, err := a.connect()
			if err != nil {
				return err
			}
			get := func(ctx context.Context) (holdfast.Project, error) { return c.GetProject(ctx, in.Project) }
			if in.Quotas != (holdfast.QuotaChange{}) {
				get = func(ctx context.Context) (holdfast.Project, error) { return c.SetQuotas(ctx, in) }
			}
			p, err := get(cmd.Context())
			if err != nil {
				return err
			}
			return a.project(p)
		},
	}
	quotaFlags(cmd.Flags(), &in.Quotas)
	return cmd
}
