// Package holdfast is the vocabulary of the system: its nouns, their states and
// transition tables, typed ids, errors, and the interfaces of the four parties
// (orchestrator, fleet, host agent, guest agent). It imports nothing but the
// standard library, and everything else imports it; the parties know each
// other only through the interfaces declared here.
package holdfast
