// Package simulation runs the whole system in one bubble of virtual time:
// orchestrators and fleets that share databases, hosts with the simulated runtime
// and real guest agents, and clients, over a network in memory that loses, repeats,
// delays and cuts. Parties die at any durable step and come back, stand still past
// their claims, and lose their machines.
//
// Nothing of the product is written anew here. What the parties are given anyway
// (databases, runtimes, HTTP clients, clocks, chance) is decorated, and every step
// takes an instant that is a hash of the seed and of what the step is, never of who
// asked first: a seed is a run, exactly.
package simulation
