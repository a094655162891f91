// Package history is the sixth rung of the proof: what several clients saw of a
// real server is held against sequential models of the life of a sandbox, a session
// and a task.
//
// Clients call at the same time, over connections that break, and every call is
// recorded with when it began and ended and what it answered. A history passes if
// there is an order of all calls, one that respects who had finished before who
// began, in which the model gives each call its answer (linearizability, searched
// for by porcupine, per sandbox, session and task). A call whose outcome is unknown may
// take effect at any time until the end, or never; one answered ABORTED promises nothing
// (contract: A1, A3, A4, A7, A8, A11, A13, A14, A16, E3).
//
// A lifecycle call is two points in that order: where its intent is recorded, and
// where its answer is read. Between them the intent is what everyone sees as the
// sandbox's operation.
package history
