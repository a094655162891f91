package simulation

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-dev/holdfast/simulation/step"
)

// Schedule is what happens in a run, besides what the parties do by themselves: a
// list, so that it can be shortened. The seed chooses the instants, the elements
// what is done and suffered. It is written and read as JSON.
type Schedule struct {
	Seed          uint64                   `json:"seed"`
	Profile       Profile                  `json:"profile,omitempty"`
	Orchestrators int                      `json:"orchestrators"`
	Fleets        int                      `json:"fleets"`
	Hosts         int                      `json:"hosts"`
	Clients       int                      `json:"clients"`
	Room          int64                    `json:"room"` // instances that a host has room for
	Watched       bool                     `json:"watched,omitempty"`
	Skews         map[string]time.Duration `json:"skews,omitempty"`
	Ops           []Op                     `json:"ops"`
	Troubles      []Trouble                `json:"troubles,omitempty"`
}

// Profile is what the clients of a run are after.
type Profile string

// The profiles. "" is sandboxes alone.
const (
	Sessions    Profile = "sessions"    // and their tasks
	Checkpoints Profile = "checkpoints" // and forks of sandboxes
	Builds      Profile = "builds"      // and sessions that wait for them
	Webhooks    Profile = "webhooks"    // what providers say comes in, and what happens goes out
)

// works reports whether there are environments.
func (p Profile) works() bool { return p == Sessions || p == Builds }

// profileOf is a seed's: two runs of three are of sandboxes alone, which take a quarter
// of the time.
func profileOf(seed uint64) Profile {
	all := []Profile{Sessions, Checkpoints, Builds, Webhooks}
	return append(all, make([]Profile, 2*len(all))...)[hash(seed, "profile")%uint64(3*len(all))]
}

// Op is a client's call. A client makes its calls one after the other.
type Op struct {
	Client int           `json:"client"`
	At     time.Duration `json:"at"` // not before
	Verb   Verb          `json:"verb"`
	Slot   int           `json:"slot"`             // whose sandbox: the request id of its create
	TTL    time.Duration `json:"ttl,omitempty"`    // of creates, extensions and lifetimes; of a session's suspend or delete: by force
	GiveUp time.Duration `json:"giveup,omitempty"` // the client leaves after that; zero: its own patience
}

// Verb is what a client calls.
type Verb string

// The verbs.
const (
	Create      Verb = "create"
	CreateOther Verb = "create-other" // the same request id with another input
	Suspend     Verb = "suspend"
	Resume      Verb = "resume"
	Delete      Verb = "delete"
	Extend      Verb = "extend"
	SetLifetime Verb = "set-lifetime"
	Get         Verb = "get"
	List        Verb = "list"
	Exec        Verb = "exec"  // with a request id, the same for all of a slot
	Drain       Verb = "drain" // the slot's number is the host's
	Activate    Verb = "activate"
	Retire      Verb = "retire"
	Quota       Verb = "quota" // the slot's number is how many sandboxes the project may have, 0: any number
)

// Trouble is one thing that goes wrong.
type Trouble struct {
	Kind  TroubleKind   `json:"kind"`
	Party string        `json:"party,omitempty"`
	To    string        `json:"to,omitempty"`    // of a partition
	Of    step.Kind     `json:"of,omitempty"`    // the kind of the steps among which it is
	N     int           `json:"n,omitempty"`     // at the party's n-th step of that kind, hop, call, or boot
	After bool          `json:"after,omitempty"` // after the step instead of before; the effect of a call happened
	At    time.Duration `json:"at,omitempty"`
	For   time.Duration `json:"for,omitempty"`
	Hop   string        `json:"hop,omitempty"` // what the hop suffers, as Fault.Name says it
	Bytes int64         `json:"bytes,omitempty"`
}

// TroubleKind is what sort of trouble it is.
type TroubleKind string

// The kinds of trouble.
const (
	Crash     TroubleKind = "crash"     // at a step, back after For
	Restart   TroubleKind = "restart"   // in order, at a time
	Pause     TroubleKind = "pause"     // SIGSTOP, for a time
	LoseHost  TroubleKind = "lose host" // machine and agent, back after For
	Partition TroubleKind = "partition" // from Party to To
	BadHop    TroubleKind = "hop"
	BadCall   TroubleKind = "call"         // the runtime's n-th call fails
	StallCall TroubleKind = "stall"        // the runtime's n-th call hangs for For
	LieCall   TroubleKind = "lie"          // the runtime's n-th look says that nothing is there
	GuestDies TroubleKind = "guest dies"   // the newest running guest of a host, at a time
	BootFails TroubleKind = "boot fails"   // the host's n-th boot dies before its agent
	Unknown   TroubleKind = "unknown"      // the n-th transaction commits and its answer is lost
	Mute      TroubleKind = "no telemetry" // heartbeats and guests' reports of a host get nowhere for a time
)

// String is the schedule as a literal for a replay.
func (s Schedule) String() string {
	raw, err := json.Marshal(s)
	if err != nil {
		return err.Error()
	}
	return string(raw)
}

// Len is how many elements it has.
func (s Schedule) Len() int { return len(s.Ops) + len(s.Troubles) }

// faultsFor is how long things go wrong in a run.
const faultsFor = 90 * time.Second

// Generate makes the schedule of a seed.
func Generate(seed uint64) Schedule {
	r := rand.New(rand.NewPCG(seed, 0x5eed))
	s := Schedule{
		Seed: seed, Profile: profileOf(seed), Orchestrators: 1 + r.IntN(2), Fleets: 1 + r.IntN(4)/3, Hosts: 1 + r.IntN(3), Clients: 1 + r.IntN(3),
		Room: []int64{2, 8, 8, 8}[r.IntN(4)], Skews: map[string]time.Duration{}, Watched: r.IntN(4) == 0,
	}
	if s.Profile.works() || s.Profile == Webhooks { // sessions keep their room for good
		s.Room = 24
	}
	for _, party := range s.parties() {
		if r.IntN(8) == 0 {
			s.Skews[party] = time.Duration(r.Int64N(int64(3*time.Hour))) - 90*time.Minute
		}
	}
	for client := range s.Clients {
		few := 4
		if s.Profile != "" {
			s.Ops, few = append(s.Ops, s.story(r, client)...), 0
		}
		for range few + r.IntN(7) {
			s.Ops = append(s.Ops, s.op(r, client))
		}
	}
	slices.SortStableFunc(s.Ops, func(a, b Op) int { return cmp.Or(cmp.Compare(a.Client, b.Client), cmp.Compare(a.At, b.At)) })
	for range r.IntN(12) {
		s.Troubles = append(s.Troubles, s.trouble(r))
	}
	return s
}

func (s Schedule) parties() []string {
	var all []string
	for i := range s.Orchestrators {
		all = append(all, "orchestrator-"+strconv.Itoa(i))
	}
	for i := range s.Fleets {
		all = append(all, "fleet-"+strconv.Itoa(i))
	}
	return append(all, s.hosts()...)
}

func (s Schedule) hosts() []string {
	var all []string
	for i := range s.Hosts {
		all = append(all, "host-"+strconv.Itoa(i))
	}
	return all
}

// span draws a duration, to the millisecond, so that schedules stay readable.
func span(r *rand.Rand, least, most time.Duration) time.Duration {
	return (least + time.Duration(r.Int64N(int64(most-least)))).Round(time.Millisecond)
}

// verbs are weighted: creates and their repeats are the most.
func (p Profile) verbs() []Verb {
	switch p {
	case Sessions:
		return []Verb{Build, Build, CreateSession, CreateSession, CreateSession, CreateSession, Submit, Submit, Submit, Submit, Submit, Submit, CancelTask, Follow, Follow,
			SuspendSession, SuspendSession, ResumeSession, ResumeSession, DeleteSession, ForkSession, Drain, Activate, Retire}
	case Checkpoints:
		return []Verb{Create, Create, Create, Create, Write, Write, Write, Checkpoint, Checkpoint, Checkpoint, Checkpoint, Fork, Fork, Fork, Fork, DeleteCheckpoint, DeleteCheckpoint,
			Suspend, Resume, Delete, Extend, Drain, Activate, Retire, Quota}
	case Builds:
		return []Verb{Build, Build, Build, Build, CreateSession, CreateSession, CreateSession, CreateSession, CreateSession, Submit, Submit, DeleteSession, SuspendSession, ResumeSession,
			Follow, Drain, Activate, Quota}
	case Webhooks:
		return []Verb{Deliver, Deliver, Deliver, Deliver, Deliver, Deliver, Deliver, Deliver, Forge, Create, Create, Suspend, Resume, Delete, Drain, Activate}
	}
	return []Verb{Create, Create, Create, Create, Create, CreateOther, Suspend, Suspend, Suspend, Resume, Resume, Resume,
		Delete, Delete, Delete, Extend, SetLifetime, Get, List, Exec, Exec, Drain, Activate, Retire, Quota}
}

// story is a client's work from its beginning on, of which some is left out: drawn one
// by one, most calls would be about nothing.
func (s Schedule) story(r *rand.Rand, client int) []Op {
	slot := r.IntN(3)
	task := slot * taskSlots
	all := map[Profile][]Op{
		Sessions: {{Verb: Build}, {Verb: CreateSession, Slot: slot}, {Verb: Submit, Slot: task}, {Verb: Submit, Slot: task + 1 + r.IntN(2)}, {Verb: Follow, Slot: task},
			{Verb: SuspendSession, Slot: slot}, {Verb: Submit, Slot: task + 2}, {Verb: ForkSession, Slot: slot}, {Verb: CancelTask, Slot: task + 1},
			{Verb: Submit, Slot: task + forkSlots*taskSlots}, {Verb: Follow, Slot: task + forkSlots*taskSlots}, {Verb: DeleteSession, Slot: slot, TTL: time.Duration(r.IntN(2))}},
		Checkpoints: {{Verb: Create, Slot: slot}, {Verb: Write, Slot: slot}, {Verb: Checkpoint, Slot: slot}, {Verb: Fork, Slot: slot}, {Verb: DeleteCheckpoint, Slot: slot},
			{Verb: Delete, Slot: slot + r.IntN(2)*forkSlots}},
		Webhooks: {{Verb: Deliver, Slot: slot}, {Verb: Deliver, Slot: slot}, {Verb: Create, Slot: slot}, {Verb: Deliver, Slot: slot + forkSlots}, {Verb: Deliver, Slot: slot},
			{Verb: Forge, Slot: slot + 2*forkSlots}, {Verb: Delete, Slot: slot}},
		Builds: {{Verb: Build, Slot: r.IntN(3)}, {Verb: CreateSession, Slot: slot}, {Verb: Submit, Slot: task}, {Verb: Build, Slot: r.IntN(5)}, {Verb: DeleteSession, Slot: slot}},
	}[s.Profile]
	var told []Op
	at := time.Duration(0)
	for i, o := range all {
		if i > 1 && r.IntN(3) == 0 {
			continue
		}
		at += span(r, 0, []time.Duration{400 * time.Millisecond, 5 * time.Second}[r.IntN(2)])
		o.Client, o.At = client, at
		told = append(told, s.hasty(r, o))
	}
	return told
}

// hasty lets some clients leave before their call is answered.
func (s Schedule) hasty(r *rand.Rand, o Op) Op {
	if r.IntN(4) == 0 {
		o.GiveUp = span(r, 5*time.Millisecond, 4*time.Second)
	}
	return o
}

func (s Schedule) op(r *rand.Rand, client int) Op {
	o := Op{Client: client, At: span(r, 0, faultsFor), Slot: r.IntN(5) % 3}
	if r.IntN(3) > 0 {
		o.At = span(r, 0, faultsFor/8) // much at once
	}
	all := s.Profile.verbs()
	o.Verb = all[r.IntN(len(all))]
	switch o.Verb {
	case Create, Extend, SetLifetime:
		o.TTL = span(r, 20*time.Second, 10*time.Minute).Round(time.Second)
	case Drain, Activate, Retire:
		o.Slot = r.IntN(s.Hosts)
		if o.Verb == Retire && (o.Slot == 0 || r.IntN(4) > 0) {
			o.Verb = Activate
		}
	case Quota:
		o.Slot = r.IntN(4)
	case Submit, CancelTask, Follow:
		o.Slot = r.IntN(7) % (2 * taskSlots)
	case Deliver, Forge:
		o.Slot = r.IntN(eventSlots)
	case DeleteSession, SuspendSession:
		if r.IntN(2) == 0 {
			o.TTL = time.Second // by force
		}
	}
	return s.hasty(r, o)
}

func (s Schedule) trouble(r *rand.Rand) Trouble {
	parties, hosts := s.parties(), s.hosts()
	t := Trouble{Party: parties[r.IntN(len(parties))], After: r.IntN(2) == 0, For: span(r, 500*time.Millisecond, 20*time.Second)}
	if r.IntN(4) == 0 {
		t.For = span(r, 30*time.Second, 3*time.Minute)
	}
	kinds := []TroubleKind{Crash, Crash, Crash, Crash, Crash, Crash, Restart, Pause, Pause, LoseHost, Partition, Partition,
		BadHop, BadHop, BadHop, BadHop, BadHop, BadHop, BadCall, BadCall, StallCall, LieCall, GuestDies, BootFails, Mute, Unknown}
	t.Kind = kinds[r.IntN(len(kinds))]
	switch t.Kind {
	case BadHop:
		return s.badHop(r, t.Party)
	case LoseHost, BadCall, StallCall, LieCall, GuestDies, BootFails, Mute:
		t.Party = hosts[r.IntN(len(hosts))]
	}
	switch t.Kind {
	case Restart: // it waits, so it is not done at a step
		t.At = span(r, 0, faultsFor/2)
	case Crash, Pause, LoseHost, Partition, GuestDies:
		t.Of, t.N = s.step(r, t.Party)
		if t.Kind != Crash && r.IntN(3) == 0 {
			t.Of, t.N, t.At = "", 0, span(r, 0, faultsFor/2)
		}
	case Mute:
		t.At = span(r, 0, faultsFor/2)
	case BootFails:
		t.N = 1 + r.IntN(4)
	default:
		t.N = s.place(r, 40)
	}
	if t.Kind == Partition {
		t.To = parties[r.IntN(len(parties))]
	}
	switch t.Kind {
	case BadCall, LieCall, GuestDies, BootFails, Unknown:
		t.For = 0
	}
	return t
}

// step draws a step that lasts or is seen, of a party.
func (s Schedule) step(r *rand.Rand, party string) (step.Kind, int) {
	if s.Profile != "" && r.IntN(6) == 0 {
		return step.Blob, 1 + r.IntN(3)
	}
	kinds := []step.Kind{step.Update, step.Update, step.Hop}
	if strings.HasPrefix(party, "host-") {
		kinds = []step.Kind{step.Record, step.Call, step.Hop}
	}
	return kinds[r.IntN(len(kinds))], s.place(r, 60)
}

// place draws where in a party's life: early ones are the interesting ones.
func (s Schedule) place(r *rand.Rand, most int) int {
	if r.IntN(3) > 0 {
		most = max(6, most/5)
	}
	return 1 + r.IntN(most)
}

// hopFaults are what a hop may suffer, by name.
func hopFaults() []string {
	return []string{"drop", "lose answer", "duplicate", "cut request", "cut response", "hang", "refuse", "replace", "delay", "late copy", "late copy", "lose answer"}
}

func (s Schedule) badHop(r *rand.Rand, party string) Trouble {
	from := []string{party, party, "guests", "client-" + strconv.Itoa(r.IntN(s.Clients))}
	all := hopFaults()
	t := Trouble{Kind: BadHop, Party: from[r.IntN(len(from))], N: s.place(r, 60), Hop: all[r.IntN(len(all))]}
	switch t.Hop {
	case "cut request", "cut response":
		t.Bytes = int64(r.IntN(200))
	case "delay", "late copy":
		t.For = span(r, time.Millisecond, 2*time.Second)
		if r.IntN(3) == 0 {
			t.For = span(r, 2*time.Second, 90*time.Second)
		}
	}
	return t
}

// parse reads a schedule that String wrote.
func parse(text string) (Schedule, error) {
	var s Schedule
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		return s, fmt.Errorf("simulation: that is no schedule: %w", err)
	}
	return s, nil
}
