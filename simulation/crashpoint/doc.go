// Package crashpoint is the fourth rung of the proof: every step that a lifecycle
// verb or a delivery takes is numbered in one run, and then the party whose step it
// is dies before it, and after it, in runs of their own; and again, at every step of
// what follows from the first death.
//
// A run is the whole system in virtual time (package simulation). After its crashes
// the party is started again, the client repeats its call or is gone for good, and
// time passes until everything rests. Then the invariants of rest must hold, and so
// must what the verb promises. A transaction is all or nothing: before its step it
// is lost, as it is when power fails before its commit is durable; after it, it is
// there and nobody heard.
package crashpoint
