package history

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/holdfast-dev/holdfast"
)

// Verdict is what became of a history's check.
type Verdict struct {
	OK      bool
	Decided bool   // false: the search did not end in its time
	Report  string // of what does not fit, for a person
}

// Check looks for an order of the calls in which the model gives each its answer,
// sandbox by sandbox. Retention is how long the server keeps suspended ones; a
// sandbox is searched for at most limit.
func Check(calls []Call, retention, limit time.Duration) Verdict {
	s := settings{retention: retention}
	parts := partition(calls)
	sandboxes, processes := parts.sandboxes, parts.processes
	for _, slot := range slices.Sorted(maps.Keys(sandboxes)) {
		if v := decide(fmt.Sprintf("sandbox %d", slot), s.model(), points(sandboxes[slot]), limit); !v.OK {
			return v
		}
	}
	for _, key := range slices.Sorted(maps.Keys(processes)) {
		if v := decide(key, starts(), points(processes[key]), limit); !v.OK {
			return v
		}
	}
	for _, slot := range slices.Sorted(maps.Keys(parts.sessions)) {
		if v := decide(fmt.Sprintf("session %d", slot), sessions(), points(parts.sessions[slot]), limit); !v.OK {
			return v
		}
	}
	for _, key := range slices.Sorted(maps.Keys(parts.tasks)) {
		if v := decide(key, errands(parts.closed[parts.tasks[key][0].Slot]), points(parts.tasks[key]), limit); !v.OK {
			return v
		}
	}
	return Verdict{OK: true, Decided: true}
}

// parts are a history's calls by what they concern, each to be looked at for itself.
type parts struct {
	sandboxes map[int][]Call
	processes map[string][]Call // by a start's request id on a sandbox
	sessions  map[int][]Call
	tasks     map[string][]Call // by a task's request id on a session
	closed    map[int]int64     // when a delete of a session was first asked for
}

func partition(calls []Call) parts {
	sandboxes, processes := map[int][]Call{}, map[string][]Call{}
	p := parts{sandboxes, processes, map[int][]Call{}, map[string][]Call{}, map[int]int64{}}
	for _, c := range calls {
		if c.Verb.ofSession() {
			p.sessions[c.Slot] = append(p.sessions[c.Slot], c)
		}
		if at := micros(c.Called); c.Verb == Close && (p.closed[c.Slot] == 0 || at < p.closed[c.Slot]) {
			p.closed[c.Slot] = at
		}
		if c.Verb.ofTask() {
			key := fmt.Sprintf("%s of session %d", c.Request, c.Slot)
			p.tasks[key] = append(p.tasks[key], c)
		}
		if c.Verb.ofSession() || c.Verb.ofTask() {
			continue
		}
		if c.Verb == Start || c.Verb == Running {
			key := fmt.Sprintf("process %s of sandbox %d", c.Request, c.Slot)
			processes[key] = append(processes[key], c)
			continue
		}
		sandboxes[c.Slot] = append(sandboxes[c.Slot], c)
	}
	return p
}

// points are the calls as porcupine takes them: a lifecycle call that succeeded
// is two, and one of unknown outcome stays open until after everything else.
func points(calls []Call) []porcupine.Operation {
	var first, last time.Time
	for i, c := range calls {
		if i == 0 || c.Called.Before(first) {
			first = c.Called
		}
		if c.Ended.After(last) {
			last = c.Ended
		}
	}
	var out []porcupine.Operation
	for _, c := range calls {
		if c.Outcome == Unknown {
			c.Ended = last.Add(100 * 365 * 24 * time.Hour)
		}
		op := porcupine.Operation{ClientId: c.Client, Input: point{Call: c}, Call: c.Called.Sub(first).Nanoseconds(), Return: c.Ended.Sub(first).Nanoseconds()}
		out = append(out, op)
		if c.Verb.mutates() && c.Outcome == OK {
			op.Input = point{Call: c, answer: true}
			out = append(out, op)
		}
	}
	return out
}

// model is the sandbox's, over sets of worlds: all that it may be.
func (s settings) model() porcupine.Model { return modelOf(world{}, s.step) }

// starts is the model of one request id on one incarnation: which process it
// started, if it did (contract: A14).
func starts() porcupine.Model {
	const somebody = "?" // it started, and nobody heard which
	known := func(now, id string) (string, bool) { return id, now == somebody || now == id }
	m := porcupine.NondeterministicModel{
		Init: func() []any { return []any{""} },
		Step: func(state, input, _ any) []any {
			now, c := state.(string), input.(point).Call
			id := string(c.Process)
			switch {
			case c.Outcome == Wrong:
				return nil
			case c.Verb == Start && c.Outcome == OK && now == "":
				return []any{id}
			case c.Verb == Start && c.Outcome != OK && now == "":
				// Refused says what became of the copy that was answered: where the network
				// made two of it between the parties, the other may have started.
				return []any{now, somebody}
			case c.Outcome != OK, c.Verb == Running && id == "" && now == "":
				return []any{now}
			}
			if next, ok := known(now, id); ok && id != "" {
				return []any{next}
			}
			return nil
		},
		Equal:         func(a, b any) bool { return a == b },
		DescribeState: func(state any) string { return fmt.Sprintf("%q", state) },
	}
	return m.ToModel()
}

// decide searches, and tells of a history that does not fit how far it did.
func decide(what string, m porcupine.Model, ops []porcupine.Operation, limit time.Duration) Verdict {
	result, info := porcupine.CheckOperationsVerbose(m, ops, limit)
	switch result {
	case porcupine.Ok:
		return Verdict{OK: true, Decided: true}
	case porcupine.Unknown:
		return Verdict{Report: fmt.Sprintf("%s: not decided in %s\n%s", what, limit, listing(ops, nil))}
	}
	var longest []porcupine.Operation
	for _, partition := range info.PartialLinearizationsOperations() {
		for _, order := range partition {
			if len(order) > len(longest) {
				longest = order
			}
		}
	}
	var text strings.Builder
	fmt.Fprintf(&text, "%s: no order fits. The longest that does:\n", what)
	state := m.Init()
	for _, op := range longest {
		_, state = m.Step(state, op.Input, nil)
		p := op.Input.(point)
		fmt.Fprintf(&text, "  %s%s\n      then %s\n", p.Call, second(p), m.DescribeState(state))
	}
	text.WriteString("All calls, in the order of their beginning (* not in that order):\n")
	text.WriteString(listing(ops, longest))
	return Verdict{Decided: true, Report: text.String()}
}

func second(p point) string {
	if p.answer {
		return "  [answer]"
	}
	return ""
}

// listing shows a history; marked are the calls that are not in order.
func listing(ops, order []porcupine.Operation) string {
	ops = slices.Clone(ops)
	slices.SortStableFunc(ops, func(a, b porcupine.Operation) int { return int(a.Call - b.Call) })
	var text strings.Builder
	for _, op := range ops {
		p := op.Input.(point)
		mark := "*"
		if slices.ContainsFunc(order, func(o porcupine.Operation) bool {
			q := o.Input.(point)
			return q.answer == p.answer && q.Call.Client == p.Client && q.Call.Called.Equal(p.Called) && q.Verb == p.Verb
		}) {
			mark = " "
		}
		fmt.Fprintf(&text, "%s %9.3f–%9.3f ms  %s%s\n", mark, float64(op.Call)/1e6, float64(op.Return)/1e6, p.Call, second(p))
	}
	return text.String()
}

// Doubles says which sandboxes of a list share a request id's label, and which
// request ids appear twice among a sandbox's processes: the census beside the
// model (contract: A3, A14).
func Doubles(list []holdfast.Sandbox, label string) error {
	seen := map[string]holdfast.SandboxID{}
	for _, s := range list {
		key := s.Labels[label]
		if other, ok := seen[key]; ok && other != s.ID {
			return fmt.Errorf("two sandboxes for one request id: %s and %s", other, s.ID)
		}
		seen[key] = s.ID
	}
	return nil
}
