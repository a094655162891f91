// Package spool keeps the processes of one boot, and what they wrote, as files
// in one directory: written by the guest agent through a mount, and read by the
// host agent, also when the guest is frozen or gone (contract: A14).
//
//	DIR/ID/record.json           the process (holdfast.Process), replaced atomically
//	DIR/ID/stdout.OFFSET         a segment; OFFSET is its first byte's, 20 digits
//	DIR/ID/stderr.OFFSET
//	DIR/console                  standard output and error of PID 1, by the runtime driver
//
// Offsets count every byte that the process wrote, and stay right when old
// segments are dropped. The root of a guest can put anything into the directory:
// links, pipes, devices, endless files, nonsense. A Reader therefore opens
// regular files only, follows no link, reads no more than the limits below, and
// takes nothing that it reads for more than the guest's own word. Nothing is
// synced to disk: a spool outlives its guest, not the power of its host.
package spool

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/holdfast-dev/holdfast"
)

// The limits of a spool. A Reader holds to them whatever the directory holds.
const (
	MaxChunk     = 64 << 10 // bytes in one chunk
	MaxRecord    = 4 << 20  // bytes of one process's record
	MaxList      = 4 << 20  // bytes of the records in one List, the newest first
	MaxProcesses = 4096     // in one List, the newest first
	MaxConsole   = 16 << 20 // bytes of the console that can be read, the last ones

	maxSegment = 64 << 20 // bytes of one segment that a reader looks at
	maxEntries = 16384    // names in one directory that a reader looks at
	maxKept    = 512      // segments of one stream that a writer keeps
)

const (
	recordName  = "record.json"
	consoleName = "console"
)

// segmentPrefix is what the names of a stream's segments begin with, "" for a
// stream that has none.
func segmentPrefix(s holdfast.Stream) string {
	switch s {
	case holdfast.Stdout:
		return "stdout."
	case holdfast.Stderr:
		return "stderr."
	}
	return ""
}

func segmentName(s holdfast.Stream, offset int64) string {
	return fmt.Sprintf("%s%020d", segmentPrefix(s), offset)
}

// segmentOffset reads the offset in a name, if it is one of the stream's.
func segmentOffset(s holdfast.Stream, name string) (int64, bool) {
	digits, ok := strings.CutPrefix(name, segmentPrefix(s))
	if !ok || len(digits) != 20 || strings.Trim(digits, "0123456789") != "" {
		return 0, false
	}
	offset, err := strconv.ParseInt(digits, 10, 64)
	return offset, err == nil && offset <= math.MaxInt64-maxSegment
}
