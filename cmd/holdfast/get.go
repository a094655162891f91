package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/holdfast-dev/holdfast"
)

func newGetCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "get ID",
		Short: "Show a sandbox, what is pending on it, and what is safe to do next",
		Args:  exactly("ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := holdfast.CheckID("ID", holdfast.PrefixSandbox, args[0]); err != nil {
				return err
			}
			c, err := a.connect()
			if err != nil {
				return err
			}
			s, err := c.GetSandbox(cmd.Context(), holdfast.SandboxID(args[0]))
			if err != nil {
				return err
			}
			if a.output == "json" {
				return a.json(s)
			}
			return a.table("", describe(s))
		},
	}
}

// describe says everything about a sandbox, by line.
func describe(s holdfast.Sandbox) [][]string {
	rows := [][]string{
		{"ID", string(s.ID)},
		{"Name", dash(s.Name)},
		{"Project", dash(string(s.Project))},
		{"Creator", dash(s.Creator)},
		{"Environment", dash(s.Environment)},
		{"Fork of", dash(string(s.Source))},
		{"State", shownState(s)},
		{"Generation", fmt.Sprint(s.Generation)},
		{"Incarnation", fmt.Sprint(s.Incarnation)},
		{"Resources", fmt.Sprintf("cpu %dm, memory %d MiB, pids %d", s.Resources.CPUMillis, s.Resources.MemoryBytes>>20, s.Resources.PIDs)},
		{"Egress", dash(string(s.Egress))},
		{"Restart", dash(string(s.Restart))},
		{"Labels", dash(joined(s.Labels))},
		{"Created", stamp(s.CreatedAt)},
		{"Updated", stamp(s.UpdatedAt)},
		{"Expires", ending(s)},
	}
	for _, p := range s.Ports {
		rows = append(rows, []string{"Port", fmt.Sprintf("%d at %s", p.Guest, p.Address)})
	}
	if s.Failure != nil {
		rows = append(rows, []string{"Failure", fmt.Sprintf("%s: %s", s.Failure.Reason, s.Failure.Message)})
		for line := range strings.Lines(s.Failure.LogTail) {
			rows = append(rows, []string{"Log", line})
		}
	}
	if s.Operation == nil {
		return append(rows, []string{"Pending", "nothing"})
	}
	return append(rows, describeOperation(*s.Operation)...)
}

// ending says when a sandbox's time is over, and what that brings.
func ending(s holdfast.Sandbox) string {
	if s.ExpiresAt.IsZero() {
		return "-"
	}
	then := s.OnExpiry
	if s.State == holdfast.SandboxSuspended || s.State == holdfast.SandboxFailed {
		then = holdfast.ExpiryDelete
	}
	return fmt.Sprintf("%s, then %s", stamp(s.ExpiresAt), dash(string(then)))
}

func describeOperation(o holdfast.Operation) [][]string {
	rows := [][]string{
		{"Pending", fmt.Sprintf("%s %s, since %s, %d attempts", o.Kind, o.ID, stamp(o.Since), o.Attempts)},
	}
	if o.Cause != "" {
		rows = append(rows, []string{"Cause", string(o.Cause)})
	}
	if o.Claim != nil {
		rows = append(rows, []string{"Claim", fmt.Sprintf("held by %s until %s", o.Claim.Holder, stamp(o.Claim.ExpiresAt))})
	}
	if o.WaitsFor != "" {
		rows = append(rows, []string{"Waits for", o.WaitsFor})
	}
	if o.LastError != nil {
		rows = append(rows, []string{"Last error", fmt.Sprintf("%s (%s %s)", o.LastError.Message, o.LastError.Code, o.LastError.Reason)})
	}
	if o.Next != "" {
		rows = append(rows, []string{"Next", o.Next})
	}
	return rows
}

func joined(labels map[string]string) string {
	parts := make([]string, 0, len(labels))
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		parts = append(parts, key+"="+labels[key])
	}
	return strings.Join(parts, " ")
}
