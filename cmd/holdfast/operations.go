package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/client"
)

func newOperationsCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "operations ID",
		Short: "Show the journal of a sandbox or session, newest first",
		Args:  exactly("ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := (holdfast.ListOperations{Resource: args[0]}).Validate(); err != nil {
				return err
			}
			c, err := a.connect()
			if err != nil {
				return err
			}
			return a.operationsOf(cmd.Context(), c, args[0])
		},
	}
}

// operationsOf writes the whole journal of a resource.
func (a *app) operationsOf(ctx context.Context, c *client.Client, resource string) error {
	in := holdfast.ListOperations{Resource: resource, PageSize: holdfast.MaxPageSize}
	var out holdfast.OperationPage
	for {
		page, err := c.ListOperations(ctx, in)
		if err != nil {
			return err
		}
		out.Operations = append(out.Operations, page.Operations...)
		if in.PageToken = page.NextPageToken; in.PageToken == "" {
			return a.journal(out)
		}
	}
}

func (a *app) journal(page holdfast.OperationPage) error {
	if a.output == "json" {
		return a.json(page)
	}
	rows := make([][]string, len(page.Operations))
	for i, o := range page.Operations {
		trouble := "-"
		if o.LastError != nil {
			trouble = fmt.Sprintf("%s (%s)", o.LastError.Message, o.LastError.Reason)
		}
		rows[i] = []string{string(o.ID), string(o.Kind), string(o.State), fmt.Sprint(o.Generation), fmt.Sprint(o.Attempts), stamp(o.Since), stamp(o.FinishedAt), trouble}
	}
	return a.table("ID KIND STATE GENERATION ATTEMPTS SINCE FINISHED LAST-ERROR", rows)
}
