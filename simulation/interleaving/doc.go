// Package interleaving holds the races against every order of their durable steps.
//
// A scenario has two or three actors: calls, deliveries, sweeps. Each of their
// steps (a transaction, a call to the fleet, a level's arrival at a host) is held
// until the scheduler lets it go, one at a time, and the scenario is run again from
// a fresh world for every order that there is. After each the world is let rest, and
// then everything is held against what it must be. The services are the product's;
// so is the database, in memory. Only the hosts are not: they keep levels as
// lifecycle.md says.
//
// What sessions, tasks, builds and checkpoints bring goes on without a caller as well.
// In their races that is one more actor, whose steps come one after the other.
//
// Races that depend on row locks are run on PostgreSQL too, statement by statement.
package interleaving
