package reconcile

import (
	"fmt"
	"io/fs"
	"maps"
	"regexp"
	"slices"
	"time"
)

// Registry is one party's answer to two questions, as data: for each hop, what happens when the message comes twice,
// late or never; and for each resource, who notices what got stuck, by when (contract: C3, F1).
type Registry struct {
	Party      string // orchestrator, fleet, hostagent
	Resources  []Resource
	Deliveries []Delivery
	Hops       []Hop
	Tables     []Table // those that belong to no resource
}

// Resource is a resource type with its tables and states.
type Resource struct {
	Kind   string
	Tables []string
	States []State
	// Reporter is who reports on it asynchronously; empty if nobody does. FirstContact is for what dies before its
	// reporter was ever heard (contract: C2).
	Reporter     string
	FirstContact Notice
	// Lifetime is who ends it when its time is over, and by when after that; empty for what has no such time.
	Lifetime Notice
}

// Notice is who notices a silence, and by when.
type Notice struct {
	Sweep string
	By    time.Duration // after the state was entered
}

// State is one state of a resource type.
type State struct {
	Name string
	// Transitional marks a state that is meant to be left: it needs Deadline, Authority, Sweep and Resolution.
	Transitional bool
	// Contradictable marks a resting state that an authority can prove wrong: it needs Authority and Sweep.
	Contradictable bool
	Deadline       time.Duration
	Authority      string // whom the sweep asks
	Sweep          string // its name
	Resolution     string // what the sweep does about it, in words
}

// Delivery is one kind of message that this party receives, with the sweep that finds what it would have said.
type Delivery struct {
	Kind  string
	From  string
	Sweep string
}

// Hop is one place where a message passes between parties. Each of its three answers is needed.
type Hop struct {
	Name               string // H2
	From, To           string
	Message            string
	Twice, Late, Never string
}

// Table is a table that belongs to no resource type, with what keeps it right: a sweep, or why it needs none.
type Table struct {
	Name  string
	Sweep string
	Why   string
}

// Inventory is what the code really has, to hold a Registry against.
type Inventory struct {
	// States lists, for each resource kind, its states, with whether each is transitional.
	States     map[string]map[string]bool
	Tables     []string // of the migrations: see TablesOf
	Deliveries []string // kinds that the party's endpoints accept
	Sweeps     []string // names that run: Runner.Names
	Hops       []string // names that the party takes part in
}

// Missing is one empty cell.
type Missing struct {
	Where string // state sandbox CREATING
	What  string // deadline
}

// String is one line about the cell.
func (m Missing) String() string { return m.Where + ": " + m.What }

// gaps collects the missing cells.
type gaps []Missing

func (g *gaps) need(ok bool, where, what string) {
	if !ok {
		*g = append(*g, Missing{Where: where, What: what})
	}
}

// Validate returns every cell that the registry itself leaves empty; none is what a build wants.
func (r Registry) Validate() []Missing {
	var g gaps
	g.need(r.Party != "", "registry", "no party")
	for _, res := range r.Resources {
		where := "resource " + res.Kind
		g.need(len(res.Tables) > 0, where, "no table")
		g.need(len(res.States) > 0, where, "no states")
		g.need(res.Reporter == "" || res.FirstContact.Sweep != "", where, "nobody notices that its reporter died before first contact")
		g.need(res.Lifetime.Sweep == "" || res.Lifetime.By > 0, where, "no time by which the end of its lifetime is noticed")
		g.need(res.Reporter == "" || res.FirstContact.By > 0, where, "no time by which a death before first contact is noticed")
		for _, s := range res.States {
			g.state("state "+res.Kind+" "+s.Name, s)
		}
	}
	for _, d := range r.Deliveries {
		g.need(d.From != "", "delivery "+d.Kind, "no sender")
		g.need(d.Sweep != "", "delivery "+d.Kind, "no sweep finds it when it never comes")
	}
	for _, h := range r.Hops {
		where := "hop " + h.Name
		g.need(h.From != "" && h.To != "", where, "no parties")
		g.need(h.Message != "", where, "no message")
		g.need(h.Twice != "", where, "no answer to twice")
		g.need(h.Late != "", where, "no answer to late")
		g.need(h.Never != "", where, "no answer to never")
	}
	for _, t := range r.Tables {
		g.need(t.Sweep != "" || t.Why != "", "table "+t.Name, "neither a sweep nor why it needs none")
	}
	return g
}

func (g *gaps) state(where string, s State) {
	asks := s.Transitional || s.Contradictable
	g.need(!asks || s.Authority != "", where, "no authority")
	g.need(!asks || s.Sweep != "", where, "no sweep")
	g.need(!s.Transitional || s.Deadline > 0, where, "no deadline")
	g.need(!s.Transitional || s.Resolution != "", where, "no resolution")
}

// Compare holds the registry against what the code has, in both directions, and returns every difference (contract:
// C3).
func (r Registry) Compare(have Inventory) []Missing {
	var g gaps
	kinds, tables, deliveries, hops := map[string]bool{}, map[string]bool{}, map[string]bool{}, map[string]bool{}
	for _, res := range r.Resources {
		kinds[res.Kind] = true
		for _, t := range res.Tables {
			tables[t] = true
		}
		g.states(res, have.States[res.Kind])
	}
	for _, t := range r.Tables {
		tables[t.Name] = true
	}
	for _, d := range r.Deliveries {
		deliveries[d.Kind] = true
	}
	for _, h := range r.Hops {
		hops[h.Name] = true
	}
	g.both("resource ", kinds, slices.Collect(maps.Keys(have.States)))
	g.both("table ", tables, have.Tables)
	g.both("delivery ", deliveries, have.Deliveries)
	g.both("hop ", hops, have.Hops)
	g.running(r, have.Sweeps)
	return g
}

// Running holds the registry against the sweeps that run, by name: each that it names runs, and each that runs has a
// row that says what for.
func (r Registry) Running(sweeps []string) []Missing {
	var g gaps
	g.running(r, sweeps)
	for _, name := range sweeps {
		g.need(slices.Contains(r.Sweeps(), name), "sweep "+name, "runs, and no row says what for")
	}
	return g
}

func (g *gaps) running(r Registry, sweeps []string) {
	for _, name := range r.Sweeps() {
		g.need(slices.Contains(sweeps, name), "sweep "+name, "is named, and does not run")
	}
}

// Sweeps lists the sweeps that the registry names, sorted.
func (r Registry) Sweeps() []string {
	named := map[string]bool{}
	for _, res := range r.Resources {
		named[res.FirstContact.Sweep], named[res.Lifetime.Sweep] = true, true
		for _, s := range res.States {
			named[s.Sweep] = true
		}
	}
	for _, d := range r.Deliveries {
		named[d.Sweep] = true
	}
	for _, t := range r.Tables {
		named[t.Sweep] = true
	}
	delete(named, "")
	return slices.Sorted(maps.Keys(named))
}

func (g *gaps) states(res Resource, have map[string]bool) {
	named := map[string]bool{}
	for _, s := range res.States {
		named[s.Name] = true
		if transitional, ok := have[s.Name]; ok {
			g.need(transitional == s.Transitional, "state "+res.Kind+" "+s.Name,
				fmt.Sprintf("transitional %v in the registry, %v in the state table", s.Transitional, transitional))
		}
	}
	g.both("state "+res.Kind+" ", named, slices.Collect(maps.Keys(have)))
}

// both says what is registered and does not exist, and what exists and is not registered.
func (g *gaps) both(what string, registered map[string]bool, have []string) {
	for _, name := range slices.Sorted(maps.Keys(registered)) {
		g.need(slices.Contains(have, name), what+name, "is registered, and does not exist")
	}
	for _, name := range slices.Sorted(slices.Values(have)) {
		g.need(registered[name], what+name, "is not registered")
	}
}

// TablesOf lists the tables that goose migrations create and do not drop again on the way up, sorted.
func TablesOf(migrations fs.FS) ([]string, error) {
	names, err := fs.Glob(migrations, "*.sql") // in the order of their numbers
	if err != nil {
		return nil, fmt.Errorf("tables of migrations: %w", err)
	}
	down := regexp.MustCompile(`(?m)^--\s*\+goose Down`)
	change := regexp.MustCompile(`(?im)^\s*(CREATE|DROP)\s+TABLE\s+(?:IF\s+(?:NOT\s+)?EXISTS\s+)?"?(\w+)`)
	tables := map[string]bool{}
	for _, name := range names {
		text, err := fs.ReadFile(migrations, name)
		if err != nil {
			return nil, fmt.Errorf("tables of migrations: %w", err)
		}
		if at := down.FindIndex(text); at != nil {
			text = text[:at[0]]
		}
		for _, m := range change.FindAllSubmatch(text, -1) {
			if m[1][0] == 'C' || m[1][0] == 'c' {
				tables[string(m[2])] = true
			} else {
				delete(tables, string(m[2]))
			}
		}
	}
	return slices.Sorted(maps.Keys(tables)), nil
}
