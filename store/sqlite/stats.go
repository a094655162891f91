package sqlite

import "sync/atomic"

// Stats is what a database's writer has done since it was opened. Updates / Groups is how many updates shared one
// commit, and so one fsync.
type Stats struct {
	Updates  int64 // updates that ran to a known outcome, those that failed and wrote nothing included
	Groups   int64 // commits
	Largest  int64 // most updates in one commit
	Repeated int64 // groups that ran again with savepoints, since a member failed
	Apart    int64 // groups that failed, whose members ran again alone
	Unknown  int64 // commits that failed (store.ErrUnknownOutcome)
	Replaced int64 // connections given up after a fault
}

// Stats returns the counters.
func (db *DB) Stats() Stats {
	c := &db.writer.stats
	return Stats{
		Updates: c.updates.Load(), Groups: c.groups.Load(), Largest: c.largest.Load(),
		Repeated: c.repeated.Load(), Apart: c.apart.Load(), Unknown: c.unknown.Load(), Replaced: c.replaced.Load(),
	}
}

type counters struct {
	updates, groups, largest, repeated, apart, unknown, replaced atomic.Int64
}

// committed counts a commit of n updates. Only the writer calls it.
func (c *counters) committed(n int) {
	if n == 0 {
		return
	}
	c.updates.Add(int64(n))
	c.groups.Add(1)
	if int64(n) > c.largest.Load() {
		c.largest.Store(int64(n))
	}
}
