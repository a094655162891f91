package simulation

import "testing"

// What the simulation found, each as the shortest schedule that showed it, with what
// it was. All of them were real, and were fixed in the product.
func TestWhatTheSimulationFoundStaysFixed(t *testing.T) {
	b := newBench(t)
	for name, schedule := range map[string]string{
		// A host is drained, and there is no other one: the new boot waits for room, and the
		// old one runs on. The sandbox's delete was then answered as done, since the new
		// boot had never been placed, half a minute before a sweep ended the old one.
		"a delete ends the boot that was to be replaced": `{"seed":632,"orchestrators":1,"fleets":1,"hosts":1,"clients":3,"room":8,"ops":[` +
			`{"client":0,"at":18196000000,"verb":"drain","slot":0,"giveup":2310000000},` +
			`{"client":2,"at":9684000000,"verb":"create","slot":2,"ttl":68000000000},` +
			`{"client":2,"at":147799000000,"verb":"delete","slot":2}]}`,
		// The copy of a builder's disk was in the blob store, and its host died before it said
		// so; the next attempt copied under another key. The sweep of unnamed copies knew the
		// copies of checkpoints alone, and kept the first one for ever.
		"the copy of a builder's disk that lost is removed": `{"seed":314,"profile":"builds","orchestrators":1,"fleets":1,"hosts":1,"clients":3,"room":24,"ops":[` +
			`{"client":2,"at":161000000,"verb":"build","slot":0,"giveup":2330000000}],` +
			`"troubles":[{"kind":"crash","party":"host-0","of":"blob","n":1,"after":true,"for":12223000000}]}`,
		// A host stood still while it made a session's sandbox. Whoever waited for the session
		// looked again at once whenever it found the attempt under way: two thousand times.
		"who waits for a session's sandbox does not spin": `{"seed":136,"profile":"sessions","orchestrators":1,"fleets":1,"hosts":3,"clients":3,"room":24,"ops":[` +
			`{"client":1,"at":213000000,"verb":"build","slot":0,"giveup":3267000000},{"client":1,"at":1664000000,"verb":"create-session","slot":2}],` +
			`"troubles":[{"kind":"pause","party":"host-2","of":"call","n":3,"after":true,"for":8438000000}]}`,
		// The commit that named the copy of a task's output had an outcome that was not known.
		// Made again, it found a copy named, its own, took that for another's which had been
		// first, and removed it.
		"the copy of a task's output is not taken for another's": `{"seed":253,"profile":"sessions","orchestrators":2,"fleets":1,"hosts":1,"clients":2,"room":24,"skews":{"orchestrator-1":1924867195770},"ops":[` +
			`{"client":0,"at":2424000000,"verb":"create-session","slot":0},{"client":0,"at":3562000000,"verb":"submit","slot":2},` +
			`{"client":0,"at":7318000000,"verb":"suspend-session","slot":0,"giveup":500000000},{"client":1,"at":235000000,"verb":"build","slot":0,"giveup":1368000000},` +
			`{"client":1,"at":269000000,"verb":"create-session","slot":1},{"client":1,"at":840000000,"verb":"submit","slot":5,"giveup":839000000},` +
			`{"client":1,"at":3227000000,"verb":"submit","slot":5,"giveup":433000000},{"client":1,"at":6264000000,"verb":"fork-session","slot":1},` +
			`{"client":1,"at":11271000000,"verb":"submit","slot":12,"giveup":3381000000}],"troubles":[{"kind":"unknown","party":"orchestrator-0","n":28}]}`,
	} {
		t.Run(name, func(t *testing.T) {
			s, err := parse(schedule)
			if err != nil {
				t.Fatal(err)
			}
			for _, v := range b.run(t, s).Violations {
				t.Error(v)
			}
		})
	}
}
