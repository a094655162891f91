// Package delivery carries events between parties over HTTP so that one that
// arrives twice, late or never does no harm.
//
// A [Sender] mints one id per event, signs each attempt (Standard Webhooks
// headers) and has a small, fixed budget. A receiver built with [Handle] checks
// size and signature and answers so that the sender's rule "retry what is not
// 4xx" never loses an event. What makes the second arrival harmless is package
// inbox, which records the id in the transaction of the effect; what makes a
// durable party's event survive its own restart is package outbox.
//
// [Telemetry] is for what may be lost: it never blocks its caller and shares
// nothing with the events that may not.
//
// The package needs only the standard library and knows none of Holdfast's nouns.
package delivery
