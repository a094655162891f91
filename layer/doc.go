// Package layer packs and unpacks what one file system has that another has not:
// a tar in which an entry ".wh.NAME" says that NAME is gone, and ".wh..wh..opq"
// that nothing of its directory is seen from below, as OCI images have it.
//
// Unpack is for archives that anyone may have made: whatever an entry is called
// and whatever links came before it, nothing outside the root is read, written,
// linked or removed, and an archive that grows past its limits is refused.
// Pack is for the writable layer of an instance that does not run meanwhile, Merge
// makes one layer of several.
package layer

import (
	"errors"
	"fmt"
)

// Whiteouts are the two ways in which an unpacked layer says that something of
// the layers below is gone.
type Whiteouts int

const (
	// Remove removes it: the root has the layers below in it already.
	Remove Whiteouts = iota
	// Overlay marks it for the kernel's overlay file system, where the root is one
	// lower directory among several. It needs root's rights.
	Overlay
)

// Limits bound what an archive may unpack to. Zero: no limit of that kind.
type Limits struct {
	Bytes   int64 // of all files together
	Entries int64
}

// Stats is what was packed or unpacked.
type Stats struct {
	Entries int64
	Bytes   int64 // of files' contents
	Skipped int64 // sockets, and device nodes below dev/: an instance gets its own
}

// ErrMalformed says that an archive is not one that can be unpacked, for a reason
// that will not pass: it is damaged, too large, or reaches for what is not its own.
var ErrMalformed = errors.New("layer: cannot be unpacked")

// ErrUnfit says that a directory has what no layer can say, so that packing it would
// fail again.
var ErrUnfit = errors.New("layer: cannot be packed")

func malformed(entry, format string, args ...any) error {
	if len(entry) > 200 {
		entry = entry[:200] + "…"
	}
	return fmt.Errorf("%w: entry %q: %s", ErrMalformed, entry, fmt.Sprintf(format, args...))
}

const (
	whiteoutPrefix = ".wh."
	opaqueMark     = ".wh..wh..opq"
	xattrPAX       = "SCHILY.xattr."    // the prefix of extended attributes in PAX records
	xattrOverlay   = "trusted.overlay." // the kernel's own notes in a writable layer
	xattrOpaque    = "trusted.overlay.opaque"
)
