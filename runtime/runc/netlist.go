package runc

import (
	"errors"

	"github.com/vishvananda/netlink"
)

// listTries bounds how often a list is read anew. Each try takes well under a
// millisecond, and what disturbs it is another instance's link coming or going.
const listTries = 100

// undisturbed reads a list of the kernel's until nothing changed meanwhile: one
// that was interrupted may lack what is there.
func undisturbed[T any](list func() ([]T, error)) ([]T, error) {
	for try := 1; ; try++ {
		all, err := list()
		if try == listTries || !errors.Is(err, netlink.ErrDumpInterrupted) {
			return all, err
		}
	}
}
