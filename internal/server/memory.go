package server

import (
	"os"
	"runtime/debug"
	"syscall"
)

const (
	// gcPercent is how much a server's heap may grow before it is collected. It is a
	// few megabytes when idle, whatever this is; collecting it at every doubling, as
	// is the default, was a fifth of the processor time of a create (measured).
	gcPercent = 800
	// memoryShare is the part of the machine's memory beyond which the heap is
	// collected sooner than that.
	memoryShare = 4
)

// SpareProcessor trades memory for processor time in this process, unless the
// environment's GOGC or GOMEMLIMIT has decided.
func SpareProcessor() {
	if os.Getenv("GOGC") != "" || os.Getenv("GOMEMLIMIT") != "" {
		return
	}
	var machine syscall.Sysinfo_t
	if err := syscall.Sysinfo(&machine); err != nil {
		return // its memory is not known: the default is safe
	}
	debug.SetGCPercent(gcPercent)
	debug.SetMemoryLimit(int64(machine.Totalram) * int64(machine.Unit) / memoryShare)
}
