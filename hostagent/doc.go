// Package hostagent converges the instances of one machine to the levels that
// the fleet sends (H3), through a runtime.Driver. It keeps a durable record of
// every incarnation beside its files, boots an incarnation at most once, finds
// its running instances again after a restart, and reports what ends. It never
// retries by itself (trap T22): a level is tried once for every call that
// brings it.
//
// It also stands between guests and everything else: its gateway passes their
// callbacks on (H5, H6), and what callers want of a guest goes through Guest
// (H11).
package hostagent
