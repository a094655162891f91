package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/holdfast-dev/holdfast"
)

func newSessionGetCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "get ID",
		Short: "Show a session, what is pending on it, and what is safe to do next",
		Args:  exactly("ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := holdfast.CheckID("ID", holdfast.PrefixSession, args[0]); err != nil {
				return err
			}
			c, err := a.connect()
			if err != nil {
				return err
			}
			s, err := c.GetSession(cmd.Context(), holdfast.SessionID(args[0]))
			if err != nil {
				return err
			}
			if a.output == "json" {
				return a.json(s)
			}
			return a.table("", describeSession(s))
		},
	}
}

// describeSession says everything about a session, by line.
func describeSession(s holdfast.Session) [][]string {
	rows := [][]string{
		{"ID", string(s.ID)},
		{"Name", dash(s.Name)},
		{"Project", dash(string(s.Project))},
		{"Creator", dash(s.Creator)},
		{"Environment", dash(s.Environment)},
		{"Build", dash(string(s.Build))},
		{"Fork of", dash(string(s.Source))},
		{"State", sessionState(s)},
		{"Door", map[bool]string{false: "open", true: "closed: no new task is taken"}[s.DoorClosed]},
		{"Tasks", sessionTasks(s)},
		{"Running", dash(string(s.Running))},
		{"Sandbox", dash(string(s.Sandbox))},
		{"Generation", fmt.Sprint(s.Generation)},
		{"Incarnation", fmt.Sprint(s.Incarnation)},
		{"Restart", dash(string(s.Restart))},
		{"Idle", s.Idle.String()},
		{"Active", stamp(s.ActiveAt)},
		{"Labels", dash(joined(s.Labels))},
		{"Created", stamp(s.CreatedAt)},
		{"Updated", stamp(s.UpdatedAt)},
	}
	if s.Repository != nil {
		rows = append(rows, []string{"Repository", strings.TrimSuffix(s.Repository.URL+" at "+s.Repository.Ref, " at ")})
	}
	for _, f := range []struct {
		name    string
		failure *holdfast.Failure
	}{{"Failure", s.Failure}, {"Hook", s.HookFailure}} {
		if f.failure == nil {
			continue
		}
		rows = append(rows, []string{f.name, fmt.Sprintf("%s: %s", f.failure.Reason, f.failure.Message)})
		for line := range strings.Lines(f.failure.LogTail) {
			rows = append(rows, []string{"Log", line})
		}
	}
	if s.Operation == nil {
		return append(rows, []string{"Pending", "nothing"})
	}
	return append(rows, describeOperation(*s.Operation)...)
}
