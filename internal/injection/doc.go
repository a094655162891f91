// Package injection runs the audit's matrix for real (contract: F2): for every
// message on every hop that it arrives twice, late and never, and for every
// resource with an asynchronous reporter that the reporter dies before it was ever
// heard; each against a throwaway system of this program's own parties, made for
// that one experiment and gone after it.
//
// What must be tried is asked of the running parties' own registries, so that a
// cell without an experiment is a failure; so is an experiment whose fault never
// fired.
package injection
