// Package fleet is the fleet's side of its hops: levels and reads from the
// orchestrator (H2), deliveries and heartbeats from hosts (H7), and the dialer
// for H2. It knows the service by its interface alone.
package fleet
