// Package testenv runs the whole system for tests: the real binaries as
// processes of their own, on real containers, to be killed at any moment; and a
// census of what they leave on the machine.
package testenv
