// Package fleet places instances on hosts and knows what became of them. It is
// the authority on placement, and on nothing else: ports and runtime state are
// the host's word (it is asked, or it reports), intent is the orchestrator's.
//
// Commands arrive as levels (H2) and go on to a host as levels (H3); facts
// arrive from hosts as deliveries (H7), and the one that matters upward, that an
// instance ended, leaves through the outbox (H8). What is lost on the way is
// found by the sweeps.
//
// Decisions are pure functions beside the acts: judge (a level), choose (a
// host), fold (an observation), planHost and planInstances (a sweep).
package fleet
