package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/client"
)

// newHostCommand is `holdfast host`, for operators.
func newHostCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "host",
		Short: "See the hosts, take them out of duty and back, and end them",
		Args:  cobra.ArbitraryArgs,
		RunE:  needSubcommand,
	}
	cmd.AddCommand(newHostListCommand(a), newHostInstancesCommand(a),
		newDutyCommand(a, holdfast.HostCordoned, "cordon", "Place nothing new on a host; what it has goes on", ""),
		newDutyCommand(a, holdfast.HostActive, "uncordon", "Let a cordoned or draining host have new instances again", ""),
		newDutyCommand(a, holdfast.HostDraining, "drain", "Empty a host, and show what is left on it", `Empty a host: nothing new is placed on it, and sandboxes with a restart policy are made anew elsewhere. The others run to
their end, and are shown; run this again to see what is left. The host is CORDONED once nothing is.`),
		newDutyCommand(a, holdfast.HostRetired, "retire", "End a host, for ever: what it had is lost", `End a host, for ever: what it had is lost, its room is given back, and deletes that waited for it are done. A host that
answers and still has instances is retired only with --force, which ends them. Its machine becomes a new host when it is
started with an empty data directory.`),
	)
	return cmd
}

func newHostListCommand(a *app) *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the hosts that are not retired",
		Args:  exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			hosts, err := c.ListHosts(cmd.Context())
			if err != nil {
				return err
			}
			if !all {
				hosts = slices.DeleteFunc(hosts, func(h holdfast.Host) bool { return h.Duty == holdfast.HostRetired })
			}
			if a.output == "json" {
				return a.json(hosts)
			}
			return a.hosts(hosts)
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "retired ones too")
	return cmd
}

func newHostInstancesCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "instances ID",
		Short: "List what is on a host",
		Args:  exactly("ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := holdfast.CheckID("ID", holdfast.PrefixHost, args[0]); err != nil {
				return err
			}
			c, err := a.connect()
			if err != nil {
				return err
			}
			return a.instancesOf(cmd, c, holdfast.HostID(args[0]))
		},
	}
}

// newDutyCommand makes a command that says what a host is for.
func newDutyCommand(a *app, duty holdfast.HostDuty, verb, short, long string) *cobra.Command {
	in := holdfast.SetHostDuty{Duty: duty}
	cmd := &cobra.Command{
		Use:   verb + " ID",
		Short: short,
		Long:  long,
		Args:  exactly("ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			in.Host = holdfast.HostID(args[0])
			c, err := a.patiently()
			if err != nil {
				return err
			}
			ctx, stop := interruptible(cmd)
			defer stop()
			h, err := c.SetHostDuty(ctx, in)
			if err != nil {
				return err
			}
			if a.output == "json" {
				return a.json(h)
			}
			if err := a.hosts([]holdfast.Host{h}); err != nil || h.Duty != holdfast.HostDraining {
				return err
			}
			return a.instancesOf(cmd, c, h.ID)
		},
	}
	cmd.Flags().StringVar(&in.Reason, "reason", "", "why, for other people")
	if duty == holdfast.HostRetired {
		cmd.Flags().BoolVar(&in.Force, "force", false, "also when it answers and has instances: they are ended")
	}
	return cmd
}

func (a *app) hosts(hosts []holdfast.Host) error {
	rows := make([][]string, len(hosts))
	for i, h := range hosts {
		rows[i] = []string{string(h.ID), dash(h.Name), string(h.Health), string(h.Duty),
			fmt.Sprintf("%d/%d", h.Used.Instances, h.Capacity.Instances),
			fmt.Sprintf("%dm/%dm", h.Used.CPUMillis, h.Capacity.CPUMillis),
			fmt.Sprintf("%dMi/%dMi", h.Used.MemoryBytes>>20, h.Capacity.MemoryBytes>>20),
			ago(h.SeenAt), dash(h.DutyReason)}
	}
	return a.table("ID NAME HEALTH DUTY INSTANCES CPU MEMORY SEEN REASON", rows)
}

// instancesOf shows what is on a host, all pages of it.
func (a *app) instancesOf(cmd *cobra.Command, c *client.Client, host holdfast.HostID) error {
	in := holdfast.FindInstances{Host: host, Limit: holdfast.MaxPageSize}
	var all holdfast.InstancePage
	for {
		page, err := c.FindInstances(cmd.Context(), in)
		if err != nil {
			return err
		}
		all.Instances = append(all.Instances, page.Instances...)
		if in.After = holdfast.InstanceID(page.Next); in.After == "" {
			break
		}
	}
	if a.output == "json" {
		return a.json(all)
	}
	rows := make([][]string, len(all.Instances))
	for i, o := range all.Instances {
		rows[i] = []string{string(o.Instance), dash(o.Owner), string(o.State), dash(string(o.Desired)), fmt.Sprint(o.Incarnation), ago(o.At)}
	}
	return a.table("ID OWNER STATE DESIRED INCARNATION SEEN", rows)
}

// hostHint says what to do about an error that concerns a host.
func hostHint(e *holdfast.Error) (hint string, ok bool) {
	if !strings.HasPrefix(e.Resource, holdfast.PrefixHost+"-") {
		return "", false
	}
	switch e.Code {
	case holdfast.NotFound:
		return "list what there is: holdfast host list --all", true
	case holdfast.FailedPrecondition:
		return "look at it: holdfast host list --all, holdfast host instances " + e.Resource, true
	}
	return "", false
}
