package history

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/rpc"
	"github.com/holdfast-dev/holdfast/transport"
)

// Load is one history's workload.
type Load struct {
	Name    string // of the history; its request ids and labels have it
	Seed    uint64
	Servers []rpc.Services // any of them answers any call
	Clients int            // at most 31
	Slots   int            // sandboxes at a time; what is gone is followed by another
	Calls   int            // of all clients together
	Pace    time.Duration  // between two calls of a client, on the average
	Faults  bool           // on the clients' connections
}

// Label is the label that says which request id a sandbox was created under.
const Label = "slot"

// nobody is the caller: the connection says who it is.
func nobody() holdfast.Caller { return holdfast.Caller{} }

// driver is a load that runs.
type driver struct {
	Load
	recorder Recorder

	mu       sync.Mutex
	ids      map[int]holdfast.SandboxID // by slot, as soon as an answer named them
	sessions map[int]known
	active   []int // slots
	slots    int   // how many there are by now
}

// Run makes the calls, then reads every sandbox once more without faults, deletes
// it, and returns all that was recorded. An error is none of the history: the
// server did not come to rest.
func (l Load) Run(ctx context.Context) ([]Call, error) {
	d := &driver{Load: l, ids: map[int]holdfast.SandboxID{}, sessions: map[int]known{}, slots: l.Slots}
	for slot := range l.Slots {
		d.active = append(d.active, slot)
	}
	var clients sync.WaitGroup
	for n := range l.Clients {
		clients.Go(func() {
			c := client{driver: d, number: n, random: rand.New(rand.NewPCG(l.Seed, uint64(n)))}
			for range l.Calls / l.Clients {
				c.call(ctx)
				c.pause(ctx)
			}
		})
	}
	clients.Wait()
	return d.settle(ctx)
}

// input is what a slot's create says; variants differ in their environment variable.
func (d *driver) input(slot, variant int) holdfast.CreateSandbox {
	in := holdfast.CreateSandbox{
		RequestID: fmt.Sprintf("%s-%d", d.Name, slot), Environment: "base", TTL: time.Hour, OnExpiry: holdfast.ExpiryDelete,
		Labels: map[string]string{"history": d.Name, Label: fmt.Sprint(slot)}, Resources: holdfast.Resources{CPUMillis: 1, MemoryBytes: holdfast.MinMemoryBytes},
	}
	switch slot % 4 { // two of four end while the clients call
	case 1:
		in.TTL = time.Second
	case 2:
		in.TTL, in.OnExpiry = time.Second, holdfast.ExpirySuspend
	}
	if variant > 0 {
		in.Env = map[string]string{"VARIANT": fmt.Sprint(variant)}
	}
	return in
}

func (d *driver) learn(slot int, id holdfast.SandboxID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if id != "" && d.ids[slot] == "" {
		d.ids[slot] = id
	}
}

// gone takes a slot whose sandbox was seen DELETED out of those that are called,
// and puts a new one in its place.
func (d *driver) gone(slot int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for i, s := range d.active {
		if s == slot {
			d.active[i] = d.slots
			d.slots++
		}
	}
}

// any is one of the slots that are called, and how many there ever were.
func (d *driver) any(random *rand.Rand) (slot, all int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.active[random.IntN(len(d.active))], d.slots
}

func (d *driver) id(slot int) holdfast.SandboxID {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.ids[slot]
}

// settle brings every sandbox to an end, one call after the other.
func (d *driver) settle(ctx context.Context) ([]Call, error) {
	d.Faults = false
	c := client{driver: d, number: d.Clients, random: rand.New(rand.NewPCG(d.Seed, uint64(d.Clients)))}
	patience := time.Now().Add(time.Minute)
	for slot := range d.slots {
		if forSession(slot) {
			if err := c.settleSession(ctx, slot); err != nil {
				return d.recorder.Calls(), err
			}
			patience = time.Now().Add(time.Minute)
			continue
		}
		for done := false; !done; {
			if time.Now().After(patience) {
				return d.recorder.Calls(), fmt.Errorf("sandbox %d did not come to rest in a minute: %s", slot, d.recorder.last(slot))
			}
			if d.id(slot) == "" {
				c.create(ctx, slot, c.random.IntN(2))
				continue
			}
			c.get(ctx, slot)
			c.processes(ctx, slot)
			done = c.mutate(ctx, Delete, slot) == OK
		}
		c.get(ctx, slot)
	}
	calls := d.recorder.Calls()
	var list []holdfast.Sandbox
	for _, server := range d.Servers[:1] {
		page, err := server.Sandboxes.ListSandboxes(ctx, nobody(), holdfast.ListSandboxes{Labels: map[string]string{"history": d.Name},
			States: []holdfast.SandboxState{holdfast.SandboxCreating, holdfast.SandboxReady, holdfast.SandboxSuspended,
				holdfast.SandboxFailed, holdfast.SandboxDeleting, holdfast.SandboxDeleted}})
		if err != nil {
			return calls, fmt.Errorf("list what there was: %w", err)
		}
		list = page.Sandboxes
	}
	return calls, Doubles(list, Label)
}

// client makes one call after the other.
type client struct {
	*driver
	number int
	random *rand.Rand
}

// server is any of the servers, the client's own more often.
func (c *client) server() rpc.Services {
	n := c.number
	if c.random.IntN(4) == 0 {
		n = c.random.IntN(len(c.Servers))
	}
	return c.Servers[n%len(c.Servers)]
}

// pause keeps the pace: lifetimes shall end while the clients call.
func (c *client) pause(ctx context.Context) {
	if c.Pace <= 0 {
		return
	}
	next := time.NewTimer(time.Duration(c.random.Int64N(int64(2 * c.Pace))))
	defer next.Stop()
	select {
	case <-next.C:
	case <-ctx.Done():
	}
}

// call makes one call, chosen by weight.
func (c *client) call(ctx context.Context) {
	slot, _ := c.any(c.random)
	if forSession(slot) {
		c.callSession(ctx, slot)
		return
	}
	if c.id(slot) == "" {
		c.create(ctx, slot, c.random.IntN(20)/19)
		return
	}
	switch n := c.random.IntN(100); {
	case n < 10:
		c.create(ctx, slot, c.random.IntN(6)/5)
	case n < 36:
		c.get(ctx, slot)
	case n < 51:
		c.mutate(ctx, Suspend, slot)
	case n < 66:
		c.mutate(ctx, Resume, slot)
	case n < 68:
		c.mutate(ctx, Delete, slot)
	case n < 77:
		c.extend(ctx, slot)
	case n < 81:
		c.set(ctx, slot)
	case n < 91:
		c.start(ctx, slot)
	case n < 95:
		c.processes(ctx, slot)
	default:
		c.list(ctx)
	}
}

// make sends a call with its fault and within its time, and says whether the
// network made two of it. What changes something and was made twice is recorded
// as a call more.
func (c *client) make(ctx context.Context, k Call, changes bool, send func(context.Context)) {
	var fault transport.Fault
	limit := 2 * time.Second
	if c.Faults {
		fault = pick(c.random, edgeChances(), 20*time.Millisecond)
		switch {
		case fault.Kind == transport.Hang:
			limit = 50 * time.Millisecond
		case c.random.IntN(12) == 0:
			limit = time.Duration(1+c.random.IntN(15)) * time.Millisecond // impatient
		}
	}
	ctx, cancel := context.WithTimeout(withFault(ctx, fault), limit)
	defer cancel()
	send(ctx)
	if changes && (fault.Kind == transport.Duplicate || fault.Kind == transport.Overlap) {
		c.recorder.ghost(k)
	}
}

func (c *client) create(ctx context.Context, slot, variant int) {
	in := c.input(slot, variant)
	k := begin(Call{Client: c.number, Slot: slot, Verb: Create, Variant: variant, TTL: in.TTL, Expiry: in.OnExpiry})
	c.make(ctx, k, true, func(ctx context.Context) {
		s, err := c.server().Sandboxes.CreateSandbox(ctx, nobody(), in)
		k.answered(s, err)
	})
	c.recorder.end(k)
	c.learn(slot, k.Sandbox.ID)
}

func (c *client) get(ctx context.Context, slot int) {
	k := begin(Call{Client: c.number, Slot: slot, Verb: Get, ID: c.id(slot)})
	c.make(ctx, k, false, func(ctx context.Context) {
		s, err := c.server().Sandboxes.GetSandbox(ctx, nobody(), k.ID)
		k.answered(s, err)
	})
	c.recorder.end(k)
	if k.Sandbox.State == holdfast.SandboxDeleted && c.random.IntN(3) == 0 {
		c.gone(slot)
	}
}

func (c *client) mutate(ctx context.Context, verb Verb, slot int) Outcome {
	k := begin(Call{Client: c.number, Slot: slot, Verb: verb, ID: c.id(slot)})
	c.make(ctx, k, true, func(ctx context.Context) {
		api, in := c.server().Sandboxes, holdfast.MutateSandbox{ID: k.ID}
		switch verb {
		case Suspend:
			k.answered(api.SuspendSandbox(ctx, nobody(), in))
		case Resume:
			k.answered(api.ResumeSandbox(ctx, nobody(), in))
		case Delete:
			k.answered(api.DeleteSandbox(ctx, nobody(), in))
		}
	})
	c.recorder.end(k)
	return k.Outcome
}

func (c *client) extend(ctx context.Context, slot int) {
	k := begin(Call{Client: c.number, Slot: slot, Verb: Extend, ID: c.id(slot), TTL: time.Duration(1000+c.random.IntN(1500)) * time.Millisecond})
	c.make(ctx, k, true, func(ctx context.Context) {
		k.answered(c.server().Sandboxes.ExtendSandbox(ctx, nobody(), holdfast.ExtendSandbox{ID: k.ID, TTL: k.TTL}))
	})
	c.recorder.end(k)
}

func (c *client) set(ctx context.Context, slot int) {
	k := begin(Call{Client: c.number, Slot: slot, Verb: Set, ID: c.id(slot), TTL: time.Duration(1000+c.random.IntN(3000)) * time.Millisecond})
	if c.random.IntN(2) == 0 {
		k.Expiry = holdfast.ExpirySuspend
	}
	c.make(ctx, k, true, func(ctx context.Context) {
		k.answered(c.server().Sandboxes.SetSandboxLifetime(ctx, nobody(), holdfast.SetSandboxLifetime{ID: k.ID, TTL: k.TTL, OnExpiry: k.Expiry}))
	})
	c.recorder.end(k)
}

// list reads all sandboxes of the history at once: one call per sandbox, since
// they are independent.
func (c *client) list(ctx context.Context) {
	k := begin(Call{Client: c.number, Verb: List})
	var page holdfast.SandboxPage
	c.make(ctx, k, false, func(ctx context.Context) {
		var err error
		page, err = c.server().Sandboxes.ListSandboxes(ctx, nobody(), holdfast.ListSandboxes{Labels: map[string]string{"history": c.Name}, PageSize: holdfast.MaxPageSize})
		k.answered(holdfast.Sandbox{}, err)
	})
	var calls []Call
	_, all := c.any(c.random)
	for slot := range all {
		if forSession(slot) {
			continue
		}
		one := k
		one.Slot, one.Verb = slot, Absent
		for _, s := range page.Sandboxes {
			if s.Labels[Label] == fmt.Sprint(slot) {
				one.Verb, one.Sandbox = List, s
			}
		}
		calls = append(calls, one)
	}
	c.recorder.end(calls...)
}

// requests is how many starts of processes there are on one sandbox.
const requests = 3

func startID(n int) string { return fmt.Sprintf("start-%d", n) }

func (c *client) start(ctx context.Context, slot int) {
	k := begin(Call{Client: c.number, Slot: slot, Verb: Start, ID: c.id(slot), Request: startID(c.random.IntN(requests))})
	c.make(ctx, k, true, func(ctx context.Context) {
		p, err := c.server().Processes.StartProcess(ctx, nobody(), k.ID, holdfast.StartProcess{RequestID: k.Request, Command: "true"})
		k.answered(holdfast.Sandbox{}, err)
		k.Process = p.ID
	})
	c.recorder.end(k)
}

// processes reads what was started on a sandbox: one call per request id.
func (c *client) processes(ctx context.Context, slot int) {
	k := begin(Call{Client: c.number, Slot: slot, Verb: Running, ID: c.id(slot)})
	var list []holdfast.Process
	c.make(ctx, k, false, func(ctx context.Context) {
		var err error
		list, err = c.server().Processes.ListProcesses(ctx, nobody(), k.ID)
		k.answered(holdfast.Sandbox{}, err)
	})
	var calls []Call
	for n := range requests {
		one := k
		one.Request = startID(n)
		for _, p := range list {
			if p.RequestID == one.Request {
				if one.Process != "" { // started twice: no order has both
					second := one
					second.Process = p.ID
					calls = append(calls, second)
					continue
				}
				one.Process = p.ID
			}
		}
		calls = append(calls, one)
	}
	c.recorder.end(calls...)
}
