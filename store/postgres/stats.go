package postgres

import "sync/atomic"

// Stats is what a database's transactions have come to since it was opened.
type Stats struct {
	Updates  int64 // updates that ran, those that failed and wrote nothing included
	Commits  int64 // commits that the server confirmed
	Again    int64 // updates that ran again after a deadlock or a conflict
	Unknown  int64 // commits that failed (store.ErrUnknownOutcome)
	Replaced int64 // connections given up after a fault
}

// Stats returns the counters.
func (db *DB) Stats() Stats {
	c := &db.stats
	return Stats{Updates: c.updates.Load(), Commits: c.commits.Load(), Again: c.again.Load(),
		Unknown: c.unknown.Load(), Replaced: c.replaced.Load()}
}

type counters struct{ updates, commits, again, unknown, replaced atomic.Int64 }
