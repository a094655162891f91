// Package transport is HTTP without a network, and HTTP over a bad one.
//
// A [Network] hands requests to handlers in the same process, with streaming bodies
// in both directions, so that parties in one process use the very hops that they use
// between machines. [Faulty] decorates any [net/http.RoundTripper] and loses, repeats,
// delays and cuts what passes through it, as a plan says.
//
// Both work inside a testing/synctest bubble: nothing in them waits on anything but
// channels, condition variables and the timer that the caller provides. The package
// needs only the standard library and knows none of Holdfast's nouns.
package transport
