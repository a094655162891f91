package guestagent

import (
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/holdfast-dev/holdfast"
)

// openTerminal makes a terminal: outside is ours and does not block a thread,
// inside is the process's.
func openTerminal(size holdfast.TerminalSize) (outside, inside *os.File, err error) {
	master, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("open a terminal: %w", err)
	}
	outside = os.NewFile(uintptr(master), "terminal")
	fail := func(err error) (*os.File, *os.File, error) {
		return nil, nil, fmt.Errorf("open a terminal: %w", joinClose(err, outside))
	}
	if err := unix.IoctlSetPointerInt(master, unix.TIOCSPTLCK, 0); err != nil {
		return fail(err)
	}
	number, err := unix.IoctlGetInt(master, unix.TIOCGPTN)
	if err != nil {
		return fail(err)
	}
	if err := resize(master, size); err != nil {
		return fail(err)
	}
	slave, err := unix.Open("/dev/pts/"+strconv.Itoa(number), unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fail(err)
	}
	return outside, os.NewFile(uintptr(slave), "terminal"), nil
}

func resize(fd int, size holdfast.TerminalSize) error {
	return unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: size.Rows, Col: size.Columns})
}
