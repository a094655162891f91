package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/client"
)

// json writes a value on a line, as the API's JSON does.
func (a *app) json(value any) error {
	raw, err := client.JSON(value)
	if err != nil {
		return err
	}
	return write(a.out, append(raw, '\n'))
}

// record writes one JSON line with a value under a name: {"started":{…}}.
func (a *app) record(name string, value any) error {
	raw, err := client.JSON(value)
	if err != nil {
		return err
	}
	return write(a.out, []byte(`{"`+name+`":`+string(raw)+"}\n"))
}

func write(w io.Writer, data []byte) error {
	if _, err := w.Write(data); err != nil {
		return fmt.Errorf("write output: %w", err)
	}
	return nil
}

// table writes rows in aligned columns; cells are made safe to print.
func (a *app) table(header string, rows [][]string) error {
	w := tabwriter.NewWriter(a.out, 0, 8, 2, ' ', 0)
	var text strings.Builder
	if header != "" {
		text.WriteString(strings.ReplaceAll(header, " ", "\t") + "\n")
	}
	for _, row := range rows {
		for i, cell := range row {
			if i > 0 {
				text.WriteByte('\t')
			}
			text.WriteString(oneLine(cell))
		}
		text.WriteByte('\n')
	}
	if err := write(w, []byte(text.String())); err != nil {
		return err
	}
	if err := w.Flush(); err != nil {
		return fmt.Errorf("write output: %w", err)
	}
	return nil
}

// sandbox writes one sandbox.
func (a *app) sandbox(s holdfast.Sandbox) error {
	if a.output == "json" {
		return a.json(s)
	}
	return a.sandboxes(holdfast.SandboxPage{Sandboxes: []holdfast.Sandbox{s}})
}

// sandboxes writes a list of them.
func (a *app) sandboxes(page holdfast.SandboxPage) error {
	if a.output == "json" {
		return a.json(page)
	}
	rows := make([][]string, len(page.Sandboxes))
	for i, s := range page.Sandboxes {
		rows[i] = []string{string(s.ID), dash(s.Name), dash(s.Environment), shownState(s), pending(s.Operation), ago(s.CreatedAt), expires(s)}
	}
	return a.table("ID NAME ENVIRONMENT STATE PENDING CREATED EXPIRES", rows)
}

// shownState is the state, with a word where it is only what was last known.
func shownState(s holdfast.Sandbox) string {
	if s.HostUnreachable {
		return string(s.State) + " (host unreachable)"
	}
	return string(s.State)
}

// pending says what is under way: the kind, and what it waits for.
func pending(o *holdfast.Operation) string {
	switch {
	case o == nil:
		return "-"
	case o.WaitsFor != "":
		return string(o.Kind) + " (waits for " + o.WaitsFor + ")"
	case o.Claim != nil:
		return string(o.Kind) + " (running)"
	}
	return string(o.Kind)
}

func dash(text string) string { return orWord(text, "-") }

func stamp(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.Local().Format("2006-01-02 15:04:05")
}

func ago(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return rounded(time.Since(t)) + " ago"
}

func expires(s holdfast.Sandbox) string {
	t := s.ExpiresAt
	if t.IsZero() || s.State == holdfast.SandboxDeleting || s.State == holdfast.SandboxDeleted {
		return "-"
	}
	if left := time.Until(t); left > 0 {
		return "in " + rounded(left)
	}
	return "now"
}

// rounded writes a duration by its largest unit that says enough.
func rounded(d time.Duration) string {
	switch {
	case d < 2*time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < 2*time.Hour:
		return fmt.Sprintf("%dm", int(d.Round(time.Minute).Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Round(time.Hour).Hours()))
	}
	return fmt.Sprintf("%dd", int(d.Hours()/24))
}
