package history

import (
	"context"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/internal/prove"
	"github.com/holdfast-dev/holdfast/transport"
)

const (
	decideFor = 30 * time.Second // the search for one sandbox's order
	goal      = 500              // histories of a whole proof
	atOnce    = 8                // histories against one server
)

// usual is the load of a history: 200 calls in some three seconds.
func usual(seed uint64, c *cluster) Load {
	return Load{Name: fmt.Sprintf("h%d", seed), Seed: seed, Servers: c.servers, Clients: 5, Slots: 5, Calls: 200,
		Pace: 60 * time.Millisecond, Faults: true}
}

// campaign runs histories against a cluster until there were enough, or the time is over.
type campaign struct {
	cluster  *cluster
	until    time.Time // zero: no end but the number
	wanted   int64
	first    uint64 // seed
	started  atomic.Int64
	checked  atomic.Int64
	bad      atomic.Int64
	calls    atomic.Int64
	mu       sync.Mutex
	outcomes map[string]int
}

func (c *campaign) run(t *testing.T) {
	var workers sync.WaitGroup
	for range atOnce {
		workers.Go(func() {
			for n := c.started.Add(1); n <= c.wanted && (c.until.IsZero() || time.Now().Before(c.until)); n = c.started.Add(1) {
				c.one(t, c.first+uint64(n))
			}
		})
	}
	workers.Wait()
}

func (c *campaign) one(t *testing.T, seed uint64) {
	load := usual(seed, c.cluster)
	calls, err := load.Run(context.WithoutCancel(t.Context()))
	if err != nil {
		c.bad.Add(1)
		t.Errorf("%s: %v", load.Name, err)
	}
	if v := Check(calls, retention, decideFor); !v.OK {
		c.bad.Add(1)
		t.Errorf("%s: %s", load.Name, v.Report)
	}
	c.checked.Add(1)
	c.calls.Add(int64(load.Calls))
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, k := range calls {
		c.outcomes[string(k.Verb)+" "+string(k.Outcome)]++
		if k.Verb == Get && k.Outcome == OK {
			c.outcomes["state "+string(k.Sandbox.State)]++
		}
		if k.Outcome == OK && k.Verb == LookAtTask {
			c.outcomes["task "+string(k.Task.State)]++
		}
		if k.Outcome == OK && k.Verb == Look {
			c.outcomes["session "+string(k.Session.State)]++
		}
	}
}

// Rung 6. contract: A1, A3, A4, A5, A7, A8, A11, A13, A14, E3
func TestProveHistoriesHaveAnOrder(t *testing.T) {
	budget, whole := prove.Budget(t)
	var until time.Time
	wanted := int64(prove.Slice(8, 2))
	if whole {
		until, wanted = time.Now().Add(budget*9/10), goal/2
	}
	var campaigns sync.WaitGroup
	all := []*campaign{{cluster: onSQLite(t, 1), first: 0}, {cluster: onPostgres(t, 1), first: 1 << 20}}
	for _, c := range all {
		c.until, c.wanted, c.outcomes = until, wanted, map[string]int{}
		campaigns.Go(func() { c.run(t) })
	}
	campaigns.Wait()
	var checked, calls, bad int64
	for _, c := range all {
		checked, calls, bad = checked+c.checked.Load(), calls+c.calls.Load(), bad+c.bad.Load()
		t.Logf("%v", c.outcomes)
		if !raced() {
			c.requireOutcomes(t)
			c.cluster.requireFaults(t, whole)
		}
	}
	prove.Report(t, prove.Figure{Rung: 6, Name: "histories of 200 calls", Value: checked, Goal: goal, Violations: bad,
		Note: fmt.Sprintf("%d calls of 5 clients each, on SQLite and on PostgreSQL with two orchestrators", calls)})
}

func raced() bool { return prove.Slice(0, 1) == 1 }

// requireOutcomes holds that the histories have what they are about.
func (c *campaign) requireOutcomes(t *testing.T) {
	t.Helper()
	for _, what := range []string{"create ok", "create reused", "create unknown", "suspend ok", "suspend refused", "suspend unknown",
		"resume ok", "resume unknown", "delete ok", "extend ok", "extend refused", "extend unknown", "set lifetime ok", "start ok",
		"start refused", "start unknown", "processes ok", "create session ok", "suspend session ok", "resume session ok", "delete session ok",
		"submit ok", "submit reused", "submit unknown", "get task ok", "cancel ok", "task SUCCEEDED", "task CANCELLED", "session SUSPENDED", "list ok", "list without it ok", "state READY", "state SUSPENDED", "state DELETED"} {
		if c.outcomes[what] == 0 {
			t.Errorf("no history had %q", what)
		}
	}
}

// requireFaults holds that every kind of fault happened.
func (c *cluster) requireFaults(t *testing.T, whole bool) {
	t.Helper()
	kinds := []transport.Kind{transport.Drop, transport.LoseAnswer, transport.Duplicate, transport.Overlap, transport.CutRequest,
		transport.CutResponse, transport.Hang, transport.Refuse, transport.Replace}
	for _, kind := range kinds {
		var n int64
		for _, f := range c.edges {
			n += f.Fired(kind)
		}
		t.Logf("%s: %d at the clients' connections, %d planned between the parties", kind, n, c.hops.Planned(kind))
		// Between the parties a short slice may have none of a rare kind.
		if n == 0 || whole && c.hops.Planned(kind) == 0 {
			t.Errorf("no fault %q", kind)
		}
	}
}

// One history again, from its seed, which is HOLDFAST_HISTORY: its timing is its own,
// but its calls and the faults of its clients are the same.
func TestHistoryReplay(t *testing.T) {
	seed := uint64(1)
	if number := os.Getenv("HOLDFAST_HISTORY"); number != "" {
		if _, err := fmt.Sscan(number, &seed); err != nil {
			t.Fatalf("HOLDFAST_HISTORY=%q is no history's number: %v", number, err)
		}
	}
	c := onSQLite(t, 1)
	if seed >= 1<<20 {
		c = onPostgres(t, 1)
	}
	calls, err := usual(seed, c).Run(t.Context())
	if err != nil {
		t.Error(err)
	}
	if v := Check(calls, retention, decideFor); !v.OK {
		t.Error(v.Report)
	}
}
