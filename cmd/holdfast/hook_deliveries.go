package main

import (
	"github.com/spf13/cobra"

	"github.com/holdfast-dev/holdfast"
)

func newHookDeliveriesCommand(a *app) *cobra.Command {
	in := holdfast.ListDeliveries{PageSize: holdfast.MaxPageSize}
	cmd := &cobra.Command{
		Use:   "deliveries",
		Short: "List what came in, each delivery once, and what it led to; it needs an admin's key",
		Args:  exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := in.Validate(); err != nil {
				return err
			}
			c, err := a.connect()
			if err != nil {
				return err
			}
			var out holdfast.DeliveryPage
			for {
				page, err := c.ListDeliveries(cmd.Context(), in)
				if err != nil {
					return err
				}
				out.Deliveries = append(out.Deliveries, page.Deliveries...)
				if in.PageToken = page.NextPageToken; in.PageToken == "" {
					break
				}
			}
			if a.output == "json" {
				return a.json(out)
			}
			rows := make([][]string, len(out.Deliveries))
			for i, d := range out.Deliveries {
				rows[i] = []string{d.Source, d.ID, d.Kind, stamp(d.ReceivedAt), d.Outcome}
			}
			return a.table("SOURCE ID KIND RECEIVED OUTCOME", rows)
		},
	}
	cmd.Flags().StringVar(&in.Source, "source", "", "only from this source, such as hook/NAME or fleet (default every one)")
	return cmd
}
