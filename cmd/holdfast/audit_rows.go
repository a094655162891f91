package main

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-dev/holdfast"
)

// section is one of several tables.
type section struct {
	title  string
	header []string
	rows   [][]string
}

// emptyCell stands in a cell that needs an answer and has none.
const emptyCell = "EMPTY"

// auditSections is the audit as tables.
func auditSections(m holdfast.AuditMatrix) []section {
	sections := []section{
		parties(m),
		told(m, "On each hop: what happens when the message comes twice, late, never",
			"HOP FROM→TO MESSAGE TWICE LATE NEVER", hopRows),
		told(m, "In each state: what is done when it lasts too long, or is not true any more",
			"RESOURCE STATE DEADLINE ASKED SWEEP WHAT-IT-DOES", stateRows),
		told(m, "Before first contact: who notices that what was to report died, by when", "RESOURCE REPORTER NOTICED-BY WITHIN", firstContactRows),
		told(m, "When its time is over: who ends it, by when", "RESOURCE ENDED-BY WITHIN", lifetimeRows),
		told(m, "Of each delivery: who finds what it would have said", "DELIVERY FROM NOTICED-BY", deliveryRows),
		told(m, "Of tables beside those of the resources: what keeps them right", "TABLE KEPT-BY WHY", tableRows),
		sweeps(m),
	}
	slices.SortStableFunc(sections[1].rows, func(a, b []string) int { return cmp.Compare(hopNumber(a[0]), hopNumber(b[0])) })
	return slices.DeleteFunc(sections, func(s section) bool { return len(s.rows) == 0 })
}

func hopNumber(name string) int {
	n, err := strconv.Atoi(strings.TrimPrefix(name, "H"))
	if err != nil {
		return 1 << 30 // last
	}
	return n
}

func parties(m holdfast.AuditMatrix) section {
	s := section{title: "Who was asked", header: []string{"PARTY", "NAME", "ANSWER"}}
	for _, p := range m.Parties {
		answer := "whole"
		switch {
		case !p.Reachable:
			answer = "NOT REACHED: " + p.Problem
		case p.Problem != "":
			answer = "in part: " + p.Problem
		case len(p.Missing) > 0:
			answer = strconv.Itoa(len(p.Missing)) + " EMPTY: " + strings.Join(p.Missing, "; ")
		}
		s.rows = append(s.rows, []string{p.Party, dash(p.Name), answer})
	}
	return s
}

// told is what each party says, a row each. What several of them say in the same
// words is one row, that names them all.
func told(m holdfast.AuditMatrix, title, header string, rows func(holdfast.PartyAudit) [][]string) section {
	s := section{title: title, header: append(strings.Fields(header), "SAID-BY")}
	said := map[string][]holdfast.PartyAudit{}
	for _, p := range m.Parties {
		for _, row := range rows(p) {
			key := strings.Join(row, "\x00")
			if _, known := said[key]; !known {
				s.rows = append(s.rows, row)
			}
			if by := said[key]; !slices.ContainsFunc(by, func(q holdfast.PartyAudit) bool { return q.Party == p.Party && q.Name == p.Name }) {
				said[key] = append(by, p)
			}
		}
	}
	for i, row := range s.rows {
		s.rows[i] = append(row, saidBy(m, said[strings.Join(row, "\x00")]))
	}
	return s
}

// saidBy names a party once where all of its processes say the same, and each of
// those that do where some differ.
func saidBy(m holdfast.AuditMatrix, by []holdfast.PartyAudit) string {
	all := map[string]int{}
	for _, p := range m.Parties {
		if p.Reachable {
			all[p.Party]++
		}
	}
	var kinds []string
	names := map[string][]string{}
	for _, p := range by {
		if !slices.Contains(kinds, p.Party) {
			kinds = append(kinds, p.Party)
		}
		names[p.Party] = append(names[p.Party], p.Name)
	}
	for i, kind := range kinds {
		switch {
		case len(names[kind]) < all[kind]:
			kinds[i] += " " + strings.Join(names[kind], " ")
		case all[kind] > 1:
			kinds[i] += fmt.Sprintf(" (all %d)", all[kind])
		}
	}
	return strings.Join(kinds, ", ")
}

// needed shows a cell that must not be empty.
func needed(text string) string { return orWord(text, emptyCell) }

// needs shows a cell that must not be empty in some rows.
func needs(need bool, text string) string {
	if need {
		return needed(text)
	}
	return dash(text)
}

// spanOf writes a duration as 15m, not 15m0s.
func spanOf(d time.Duration) string {
	if d == 0 {
		return ""
	}
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

func hopRows(p holdfast.PartyAudit) (rows [][]string) {
	for _, h := range p.Hops {
		rows = append(rows, []string{needed(h.Name), needed(h.From) + " → " + needed(h.To), needed(h.Message), needed(h.Twice), needed(h.Late), needed(h.Never)})
	}
	return rows
}

func stateRows(p holdfast.PartyAudit) (rows [][]string) {
	for _, r := range p.Resources {
		for _, s := range r.States {
			asks := s.Transitional || s.Contradictable
			deadline := "rests"
			if s.Transitional {
				deadline = needed(spanOf(s.Deadline))
			}
			rows = append(rows, []string{r.Kind, s.Name, deadline, needs(asks, s.Authority), needs(asks, s.Sweep), needs(s.Transitional, s.Resolution)})
		}
	}
	return rows
}

func firstContactRows(p holdfast.PartyAudit) (rows [][]string) {
	for _, r := range p.Resources {
		if r.Reporter != "" {
			rows = append(rows, []string{r.Kind, r.Reporter, needed(r.FirstContact.Sweep), needed(spanOf(r.FirstContact.By))})
		}
	}
	return rows
}

func lifetimeRows(p holdfast.PartyAudit) (rows [][]string) {
	for _, r := range p.Resources {
		if r.Lifetime != (holdfast.AuditNotice{}) {
			rows = append(rows, []string{r.Kind, needed(r.Lifetime.Sweep), needed(spanOf(r.Lifetime.By))})
		}
	}
	return rows
}

func deliveryRows(p holdfast.PartyAudit) (rows [][]string) {
	for _, d := range p.Deliveries {
		rows = append(rows, []string{d.Kind, needed(d.From), needed(d.Sweep)})
	}
	return rows
}

func tableRows(p holdfast.PartyAudit) (rows [][]string) {
	for _, t := range p.Tables {
		rows = append(rows, []string{t.Name, needs(t.Why == "", t.Sweep), dash(t.Why)})
	}
	return rows
}

// sweeps are shown for each process: that is where they run, or do not.
func sweeps(m holdfast.AuditMatrix) section {
	s := section{title: "Sweeps: what each did in its last run",
		header: strings.Fields("SWEEP PARTY NAME EVERY LAST-RUN TOOK SEEN ACTED SKIPPED FAILED NOTE")}
	for _, p := range m.Parties {
		for _, one := range p.Sweeps {
			row := []string{one.Name, p.Party, dash(p.Name), spanOf(one.Every)}
			if r := one.LastRun; r != nil {
				row = append(row, rounded(p.At.Sub(r.Began))+" ago", r.Took.Round(time.Microsecond*100).String(),
					strconv.Itoa(r.Seen), strconv.Itoa(r.Acted), strconv.Itoa(r.Skipped), strconv.Itoa(r.Failed))
			} else {
				row = append(row, "not yet", "-", "-", "-", "-", "-")
			}
			s.rows = append(s.rows, append(row, dash(sweepNote(p.At, one))))
		}
	}
	return s
}

func sweepNote(at time.Time, s holdfast.AuditSweep) string {
	var notes []string
	if s.Late {
		notes = append(notes, "LATE")
	}
	if !s.Running.IsZero() {
		notes = append(notes, "has been running for "+rounded(at.Sub(s.Running)))
	}
	if s.LastRun != nil && s.LastRun.Error != "" {
		notes = append(notes, s.LastRun.Error)
	}
	return strings.Join(notes, "; ")
}
