package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"pgregory.net/rapid"

	"github.com/holdfast-dev/holdfast"
)

// matrix is a small audit without a fault: three parties, of which two tell one
// hop alike.
func matrix() holdfast.AuditMatrix {
	at := time.Date(2026, 5, 1, 0, 0, 0, 0, time.UTC)
	h2 := holdfast.AuditHop{Name: "H2", From: "orchestrator", To: "fleet", Message: "level", Twice: "joined", Late: "refused", Never: "sent again"}
	h10, side := h2, h2
	h10.Name, side.Never = "H10", "asked"
	host := holdfast.PartyAudit{Party: "hostagent", Name: "ho-1", Reachable: true, At: at,
		Resources: []holdfast.AuditResource{{Kind: "instance", Reporter: "guest", FirstContact: holdfast.AuditNotice{Sweep: "host-instances", By: 2 * time.Minute},
			Lifetime: holdfast.AuditNotice{Sweep: "host-instances", By: time.Hour},
			States: []holdfast.AuditState{{Name: "BOOTING", Transitional: true, Deadline: 2 * time.Minute, Authority: "guest", Sweep: "host-instances", Resolution: "asked"},
				{Name: "RUNNING", Contradictable: true, Authority: "runtime", Sweep: "host-instances"}, {Name: "DONE"}}}},
		Sweeps: []holdfast.AuditSweep{{Name: "host-instances", Every: time.Minute, Running: at.Add(-3 * time.Second),
			LastRun: &holdfast.AuditRun{Began: at.Add(-63 * time.Second), Took: 40 * time.Millisecond, Seen: 6, Acted: 3, Skipped: 2, Failed: 1, Error: "item a:\tno route"}}}}
	second := host
	second.Name, second.Sweeps = "ho-2", []holdfast.AuditSweep{{Name: "host-instances", Every: time.Minute}}
	return holdfast.AuditMatrix{Parties: []holdfast.PartyAudit{
		{Party: "orchestrator", Name: "p:1", Reachable: true, Hops: []holdfast.AuditHop{h10, h2}},
		{Party: "fleet", Name: "p:2", Reachable: true, Hops: []holdfast.AuditHop{h2, side},
			Deliveries: []holdfast.AuditDelivery{{Kind: "observed", From: "host agent", Sweep: "overdue"}},
			Tables:     []holdfast.AuditTable{{Name: "outbox", Why: "sent by its own loop"}}},
		host, second,
	}}
}

const wholeAudit = `Who was asked
PARTY NAME ANSWER
orchestrator p:1 whole
fleet p:2 whole
hostagent ho-1 whole
hostagent ho-2 whole

On each hop: what happens when the message comes twice, late, never
HOP FROM→TO MESSAGE TWICE LATE NEVER SAID-BY
H2 orchestrator → fleet level joined refused sent again orchestrator, fleet
H2 orchestrator → fleet level joined refused asked fleet
H10 orchestrator → fleet level joined refused sent again orchestrator

In each state: what is done when it lasts too long, or is not true any more
RESOURCE STATE DEADLINE ASKED SWEEP WHAT-IT-DOES SAID-BY
instance BOOTING 2m guest host-instances asked hostagent (all 2)
instance RUNNING rests runtime host-instances - hostagent (all 2)
instance DONE rests - - - hostagent (all 2)

Before first contact: who notices that what was to report died, by when
RESOURCE REPORTER NOTICED-BY WITHIN SAID-BY
instance guest host-instances 2m hostagent (all 2)

When its time is over: who ends it, by when
RESOURCE ENDED-BY WITHIN SAID-BY
instance host-instances 1h hostagent (all 2)

Of each delivery: who finds what it would have said
DELIVERY FROM NOTICED-BY SAID-BY
observed host agent overdue fleet

Of tables beside those of the resources: what keeps them right
TABLE KEPT-BY WHY SAID-BY
outbox - sent by its own loop fleet

Sweeps: what each did in its last run
SWEEP PARTY NAME EVERY LAST-RUN TOOK SEEN ACTED SKIPPED FAILED NOTE
host-instances hostagent ho-1 1m 63s ago 40ms 6 3 2 1 has been running for 3s; item a: no route
host-instances hostagent ho-2 1m not yet - - - - - -

`

// contract: F1
func TestF1_AWholeAuditIsShownAndExits0(t *testing.T) {
	c := newCLI(t)
	c.fake.Matrix = matrix()
	r := c.run(t, "audit")
	r.stdout = strings.ReplaceAll(r.stdout, "63s ago", "SIXTY") // ids masks the seconds
	r.want(t, 0, strings.ReplaceAll(wholeAudit, "63s ago", "SIXTY"), "")
	r = c.run(t, "audit", "-o", "json")
	var out struct {
		Parties []struct {
			Party     string
			Reachable bool
			Hops      []struct{ Name, Twice string }
			Sweeps    []struct{ LastRun *struct{ Acted string } }
		}
	}
	if err := json.Unmarshal([]byte(r.stdout), &out); err != nil || r.code != 0 {
		t.Fatalf("%v: %+v", err, r)
	}
	if len(out.Parties) != 4 || !out.Parties[0].Reachable || out.Parties[1].Hops[0].Twice != "joined" || out.Parties[2].Sweeps[0].LastRun.Acted != "3" {
		t.Errorf("%+v", out)
	}
	if r := c.run(t, "audit", "--inject", "--at-once", "0"); r.code != 2 || !strings.Contains(r.err, "1 to 64") {
		t.Errorf("experiments that are to be none at the same time: %+v", r)
	}
	if r := c.run(t, "audit", "--inject", "--runtime", "none"); r.code != 1 || !strings.Contains(r.err, "there is no runtime") {
		t.Errorf("a runtime that there is not: %+v", r)
	}
}

// contract: F1. Whatever is not as it should be is shown, said, and exits 1, as
// a table and as JSON.
func TestF1_AnEmptyCellAnUnreachablePartyAndALateSweepExit1(t *testing.T) {
	for name, c := range map[string]struct {
		change      func(*holdfast.AuditMatrix)
		shown, said string
	}{
		"empty cell": {func(m *holdfast.AuditMatrix) {
			m.Parties[0].Hops[0].Never, m.Parties[0].Missing = "", []string{"hop H10: no answer to never"}
		}, "H10 orchestrator → fleet level joined refused EMPTY orchestrator\n", "fault: orchestrator p:1: empty cell: hop H10: no answer to never\n"},
		"unreachable host": {func(m *holdfast.AuditMatrix) {
			m.Parties[3] = holdfast.PartyAudit{Party: "hostagent", Name: "ho-2", Problem: "no answer within 2s"}
		}, "hostagent ho-2 NOT REACHED: no answer within 2s\n", "fault: hostagent ho-2: not reached: no answer within 2s\n"},
		"hosts not known": {func(m *holdfast.AuditMatrix) { m.Parties[1].Problem = "its hosts are not known" },
			"fleet p:2 in part: its hosts are not known\n", "fault: fleet p:2: its hosts are not known\n"},
		"no host": {func(m *holdfast.AuditMatrix) { m.Parties = m.Parties[:2] }, "fleet p:2 whole\n", "fault: hostagent: there is none\n"},
		"late sweep": {func(m *holdfast.AuditMatrix) { m.Parties[3].Sweeps[0].Late = true },
			"ho-2 1m not yet - - - - - LATE\n", "fault: hostagent ho-2: sweep host-instances is late: it is to run every 1m0s\n"},
	} {
		t.Run(name, func(t *testing.T) {
			cli := newCLI(t)
			m := matrix()
			c.change(&m)
			cli.fake.Matrix = m
			for _, form := range []string{"table", "json"} {
				r := cli.run(t, "audit", "-o", form)
				if r.code != 1 || !strings.Contains(r.err, c.said) || !strings.Contains(r.err, "error: the audit is not whole: faults: 1\nnext: ") {
					t.Errorf("%s: %d, %s", form, r.code, r.err)
				}
				if form == "table" && !strings.Contains(ids(r.stdout), c.shown) {
					t.Errorf("not shown: %q in\n%s", c.shown, ids(r.stdout))
				}
			}
		})
	}
}

// Hosts that differ, by their versions say, are named where they do.
func TestF1_HostsThatSayDifferentThingsAreNamed(t *testing.T) {
	c := newCLI(t)
	m := matrix()
	m.Parties[3].Resources = []holdfast.AuditResource{m.Parties[2].Resources[0]}
	m.Parties[3].Resources[0].FirstContact.By = time.Hour
	c.fake.Matrix = m
	out := ids(c.run(t, "audit").stdout)
	for _, want := range []string{"instance guest host-instances 2m hostagent ho-1\n", "instance guest host-instances 1h hostagent ho-2\n"} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is not in\n%s", want, out)
		}
	}
}

// On a terminal no line is longer than it, and no word is lost.
func TestATableIsWrappedToItsTerminalAndLosesNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		columns := rapid.IntRange(1, 7).Draw(t, "columns")
		s := section{}
		var words []string
		for i := range columns {
			s.header = append(s.header, fmt.Sprintf("C%d", i))
		}
		for range rapid.IntRange(1, 5).Draw(t, "rows") {
			row := make([]string, columns)
			for i := range row {
				in := rapid.SliceOfN(rapid.StringMatching(`[a-zäß→]{1,12}`), 0, 9).Draw(t, "words")
				row[i], words = strings.Join(in, " "), append(words, in...)
			}
			s.rows = append(s.rows, row)
		}
		width := rapid.IntRange(40, 200).Draw(t, "width")
		text := wrapped(s, width)
		for line := range strings.Lines(text) {
			if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > width {
				t.Fatalf("%d columns in %d: %q", n, width, line)
			}
		}
		counts := map[string]int{}
		for word := range strings.FieldsSeq(text) {
			counts[word]++
		}
		for _, word := range words {
			if counts[word]--; counts[word] < 0 {
				t.Fatalf("%q is lost in %q", word, text)
			}
		}
	})
}

func TestALongWordIsBrokenAndShortCellsStaySideBySide(t *testing.T) {
	if got := fold("ab "+strings.Repeat("x", 7), 3); strings.Join(got, "|") != "ab|xxx|xxx|x" {
		t.Errorf("%q", got)
	}
	got := wrapped(section{header: []string{"A", "B"}, rows: [][]string{{"one", "two"}, {"1", "a text that does not fit into the line"}}}, 30)
	if want := "A    B\n\none  two\n\n1    a text that does not fit\n     into the line\n"; got != want {
		t.Errorf("got\n%s", got)
	}
	got = wrapped(section{header: []string{"A", "LONG"}, rows: [][]string{{"a text that does not fit", "another one like it"}}}, 30)
	if want := "A     a text that does not fit\nLONG  another one like it\n"; got != want {
		t.Errorf("got\n%s", got)
	}
}
