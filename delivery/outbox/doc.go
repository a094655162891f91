// Package outbox keeps events of a durable party until their receiver has
// acknowledged them.
//
// [Enqueue] writes a row in the transaction of the change that it reports, so that
// neither exists without the other. A [Dispatcher], of which every replica may run
// one, claims rows that are due, sends each once per claim, and backs off; it finds
// them by polling, and [Dispatcher.Wake] only makes that sooner (T21). A claim has
// an end and a number: a holder that comes back too late changes nothing (T11). A
// row that keeps failing delays only rows of its own ordering key (T19), and ends
// as a dead letter that is listed and can be sent again.
//
// Receivers may get an event more than once and know it by its id; package inbox is
// the other half. The package works on SQLite and PostgreSQL.
package outbox
