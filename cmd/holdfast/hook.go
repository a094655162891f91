package main

import (
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/holdfast-dev/holdfast"
)

// newHookCommand is `holdfast hook`.
func newHookCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "hook",
		Short: "Let webhooks of GitHub and others make sessions, tasks and sandboxes: create, list, delete, actions, retry, deliveries",
		Args:  cobra.ArbitraryArgs,
		RunE:  needSubcommand,
	}
	cmd.AddCommand(newHookCreateCommand(a), newHookListCommand(a), newHookDeleteCommand(a), newHookActionsCommand(a), newHookRetryCommand(a), newHookDeliveriesCommand(a))
	return cmd
}

// hooks writes a list of hooks.
func (a *app) hooks(page holdfast.HookPage) error {
	if a.output == "json" {
		return a.json(page)
	}
	rows := make([][]string, len(page.Hooks))
	for i, h := range page.Hooks {
		rows[i] = []string{h.Name, string(h.Kind), string(h.Project), dash(h.Creator), stamp(h.CreatedAt), "/hooks/" + h.Name}
	}
	return a.table("NAME KIND PROJECT CREATOR CREATED PATH", rows)
}

// actions writes a list of hooks' actions.
func (a *app) actions(page holdfast.HookActionPage) error {
	if a.output == "json" {
		return a.json(page)
	}
	rows := make([][]string, len(page.Actions))
	for i, x := range page.Actions {
		why := "-"
		if x.Failure != nil {
			why = string(x.Failure.Reason) + ": " + x.Failure.Message
		}
		rows[i] = []string{string(x.ID), x.Hook, x.Event, x.Rule, string(x.State), strconv.Itoa(x.Attempts), dash(strings.Join(x.Resources, ",")), ago(x.CreatedAt), why}
	}
	return a.table("ID HOOK EVENT RULE STATE ATTEMPTS RESOURCES CAME WHY", rows)
}
