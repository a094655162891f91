package runc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/holdfast-dev/holdfast"
	"golang.org/x/sys/unix"
)

// letGo lets a created guest run, as `runc start` does: its process waits at a
// pipe in the OCI runtime's directory for someone to read from it. To start
// another process for that would take a tenth of a create (measured). It reports
// false where it is not certain that this is how it is done here, and then
// nothing was done: not runc's own files, or no such process.
func (d *Driver) letGo(ctx context.Context, ref holdfast.InstanceRef) (bool, error) {
	id := containerID(ref)
	state, err := exists(filepath.Join(d.oci.root, id, "state.json"))
	if err != nil || !state {
		return false, err
	}
	pid, err := d.files(ref).readPID()
	if err != nil || pid == 0 || !alive(pid) || !d.cgroups.holds(id, pid) {
		return false, err
	}
	path := filepath.Join(d.oci.root, id, "exec.fifo")
	// Not to wait here: the guest waits for a reader, and comes when there is one.
	pipe, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if err := d.awaitWriter(ctx, pipe, pid); err != nil {
		return false, errors.Join(fmt.Errorf("the guest does not come to its start: %w", err), pipe.Close())
	}
	// It is on its way; without the pipe the OCI runtime calls it running.
	return true, errors.Join(os.Remove(path), pipe.Close())
}

// awaitWriter waits until the guest's process has written to the pipe, which is
// the last that it does before it becomes the guest.
func (d *Driver) awaitWriter(ctx context.Context, pipe *os.File, pid int) error {
	conn, err := pipe.SyscallConn()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), d.config.CommandTimeout)
	defer cancel()
	for ctx.Err() == nil {
		var came bool
		var pollErr error
		err := conn.Control(func(fd uintptr) {
			fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
			_, pollErr = unix.Poll(fds, int(writerPoll.Milliseconds()))
			came = fds[0].Revents != 0
		})
		switch {
		case err != nil:
			return err
		case came:
			return nil
		case pollErr != nil && !errors.Is(pollErr, unix.EINTR):
			return pollErr
		case !alive(pid):
			return errors.New("its process is gone")
		case isGuest(pid):
			return nil // let go before, by a driver that was killed then
		}
	}
	return ctx.Err()
}

// isGuest reports whether the process has become the guest agent.
func isGuest(pid int) bool {
	line, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cmdline"))
	return err == nil && bytes.HasPrefix(line, []byte(guestBinary+"\x00"))
}

// writerPoll is how often it is looked whether the guest's process still lives.
const writerPoll = 100 * time.Millisecond
