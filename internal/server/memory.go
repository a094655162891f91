package server

import (
	"os"
	"runtime/debug"
)

// gcPercent is how much a server's heap may grow before it is collected. It is a
// few megabytes when idle, whatever this is; collecting it at every doubling, as
// is the default, was a fifth of the processor time of a create (measured).
const gcPercent = 400

// SpareProcessor trades memory for processor time in this process, unless the
// environment's GOGC has decided.
func SpareProcessor() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
}
