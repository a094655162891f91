package holdfast

import (
	"context"
	"fmt"
	"strings"
	"time"
)

// The parties of an audit, as they name themselves.
const (
	PartyOrchestrator = "orchestrator"
	PartyFleet        = "fleet"
	PartyHostAgent    = "hostagent"
)

// AuditWait bounds an audit: the fleet has that long to answer, with what its
// hosts say, each of which has 2 s.
const AuditWait = 4 * time.Second

// AuditMatrix is what the running parties say of themselves: for each hop, what
// happens when the message comes twice, late, never; for each resource, who
// notices what got stuck, by when; and whether those who notice really run
// (contract: F1).
type AuditMatrix struct {
	Parties []PartyAudit
}

// PartyAudit is one process's part: its registry, and what its sweeps did last.
type PartyAudit struct {
	Party      string          `json:"party"` // orchestrator, fleet or hostagent
	Name       string          `json:"name"`  // of the process, or the host's id
	Reachable  bool            `json:"reachable"`
	Problem    string          `json:"problem,omitempty"` // why there is no answer, or only a part of one
	At         time.Time       `json:"at"`                // of the answer, by the party's own clock; its sweeps' times are too
	Hops       []AuditHop      `json:"hops,omitempty"`
	Resources  []AuditResource `json:"resources,omitempty"`
	Deliveries []AuditDelivery `json:"deliveries,omitempty"`
	Tables     []AuditTable    `json:"tables,omitempty"`
	Sweeps     []AuditSweep    `json:"sweeps,omitempty"`
	Missing    []string        `json:"missing,omitempty"` // every empty cell, in words
}

// AuditHop is one side's answers about a hop between parties.
type AuditHop struct {
	Name    string `json:"name"` // H2
	From    string `json:"from"`
	To      string `json:"to"`
	Message string `json:"message"`
	Twice   string `json:"twice"`
	Late    string `json:"late"`
	Never   string `json:"never"`
}

// AuditResource is a resource type as one party has it.
type AuditResource struct {
	Kind         string       `json:"kind"`
	Tables       []string     `json:"tables,omitempty"`
	States       []AuditState `json:"states,omitempty"`
	Reporter     string       `json:"reporter,omitempty"` // who reports asynchronously; "" if nobody does
	FirstContact AuditNotice  `json:"first_contact"`      // for what dies before its reporter was ever heard (contract: C2)
	Lifetime     AuditNotice  `json:"lifetime"`           // who ends it when its time is over; empty for what has no such time
}

// AuditNotice is who notices a silence, and by when.
type AuditNotice struct {
	Sweep string        `json:"sweep,omitempty"`
	By    time.Duration `json:"by,omitempty"` // after the silence began, or the time was over
}

// AuditState is one state: what is asked of whom when it does not end, or when
// it may be untrue.
type AuditState struct {
	Name           string        `json:"name"`
	Transitional   bool          `json:"transitional,omitempty"`   // meant to be left
	Contradictable bool          `json:"contradictable,omitempty"` // rests, and its authority can prove it wrong
	Deadline       time.Duration `json:"deadline,omitempty"`
	Authority      string        `json:"authority,omitempty"`
	Sweep          string        `json:"sweep,omitempty"`
	Resolution     string        `json:"resolution,omitempty"`
}

// AuditDelivery is a kind of message that a party receives, with the sweep that
// finds what it would have said.
type AuditDelivery struct {
	Kind  string `json:"kind"`
	From  string `json:"from"`
	Sweep string `json:"sweep"`
}

// AuditTable is a table that belongs to no resource type, with what keeps it
// right: a sweep, or why it needs none.
type AuditTable struct {
	Name  string `json:"name"`
	Sweep string `json:"sweep,omitempty"`
	Why   string `json:"why,omitempty"`
}

// AuditSweep is a loop that runs in a party's process.
type AuditSweep struct {
	Name    string        `json:"name"`
	Every   time.Duration `json:"every"`              // between the beginnings of runs
	Running time.Time     `json:"running,omitzero"`   // since when a run is in progress; zero if none is
	Late    bool          `json:"late,omitempty"`     // it should have run again by now, and has not
	LastRun *AuditRun     `json:"last_run,omitempty"` // nil: none has ended since the start
}

// AuditRun is what one run of a sweep did. Seen is Acted + Skipped + Failed.
type AuditRun struct {
	Began   time.Time     `json:"began"`
	Took    time.Duration `json:"took"`
	Seen    int           `json:"seen"`
	Acted   int           `json:"acted"`
	Skipped int           `json:"skipped"` // nothing to do, or somebody else is at it
	Failed  int           `json:"failed"`
	Error   string        `json:"error,omitempty"` // the first, for a person
}

// AuditService shows the audit to operators.
type AuditService interface {
	// GetMatrix asks every party that can be asked, at once, and answers within
	// AuditWait: a party that does not is in the matrix as not reachable.
	GetMatrix(ctx context.Context, caller Caller) (AuditMatrix, error)
}

// Faults lists what is wrong, a line each: every empty cell, every party that
// was not heard in full, every sweep that is late, and a kind of party that is
// not there at all. None is what an operator wants.
func (m AuditMatrix) Faults() []string {
	var faults []string
	there, heard := map[string]bool{}, false
	for _, p := range m.Parties {
		there[p.Party] = true
		heard = heard || p.Party == PartyFleet && p.Reachable && p.Problem == ""
		who := strings.TrimSpace(p.Party + " " + p.Name)
		switch {
		case !p.Reachable:
			faults = append(faults, fmt.Sprintf("%s: not reached: %s", who, p.Problem))
		case p.Problem != "":
			faults = append(faults, fmt.Sprintf("%s: %s", who, p.Problem))
		}
		for _, cell := range p.Missing {
			faults = append(faults, fmt.Sprintf("%s: empty cell: %s", who, cell))
		}
		for _, s := range p.Sweeps {
			if s.Late {
				faults = append(faults, fmt.Sprintf("%s: sweep %s is late: it is to run every %s", who, s.Name, s.Every))
			}
		}
	}
	for _, party := range []string{PartyOrchestrator, PartyFleet, PartyHostAgent} {
		if !there[party] && (party != PartyHostAgent || heard) { // hosts are the fleet's to name
			faults = append(faults, party+": there is none")
		}
	}
	return faults
}
