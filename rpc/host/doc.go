// Package host is a host agent's side of its hops: levels and reads (H3), and
// what callers want of its guests (H11), whose calls it passes on as package
// rpc/guest speaks them. It knows the agent by its interface alone.
package host
