// Package inbox remembers which deliveries have arrived, so that an event takes
// effect once however often it arrives.
//
// The one rule is that the row and the effect share a transaction: [Record] is
// given the transaction in which the caller changes its state and enqueues what
// follows. Apart from it, a crash between the two loses the event or repeats it
// (T16). contract: B3, B4
//
// The package works on any transaction with the query methods of [*database/sql.Tx],
// on SQLite and PostgreSQL, and knows nothing of what the deliveries say.
package inbox
