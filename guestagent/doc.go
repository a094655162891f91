// Package guestagent is the party inside an instance (contract: B1). As its
// PID 1 it reaps every child, runs processes and terminals, keeps what they write
// in a spool (package spool) that outlives the instance, offers the files, and
// calls home once: ready, or failed. It queues nothing and keeps nothing that a
// next boot would need.
//
// It also runs inside another process, for simulations: with a simulated
// Executor, and files below a directory of its own.
package guestagent
