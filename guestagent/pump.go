package guestagent

import (
	"errors"
	"io"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// pumpBuffer is what a pump holds in memory, in bytes: writers of more wait for
// the disk.
const pumpBuffer = 64 << 10

// terminalSettle is how long the end of a process with a terminal waits for the
// terminal to hang up, which it does at once unless something holds it open.
const terminalSettle = 100 * time.Millisecond

// pump carries what a process writes to where it is kept, until nothing holds
// the other end open any more.
type pump struct {
	from     *os.File
	to       io.WriteCloser
	terminal bool
	done     chan struct{} // nothing writes any more
	settled  chan struct{} // what was there when settle was called is kept
	once     sync.Once
}

func newPump(from *os.File, to io.WriteCloser, terminal bool) *pump {
	return &pump{from: from, to: to, terminal: terminal, done: make(chan struct{}), settled: make(chan struct{})}
}

func (p *pump) run() {
	defer close(p.done)
	buffer := make([]byte, pumpBuffer)
	for {
		n, err := p.from.Read(buffer)
		p.keep(buffer[:n])
		if errors.Is(err, os.ErrDeadlineExceeded) {
			err = p.settleNow(buffer)
		}
		if err != nil {
			// The end of a pipe, or EIO, which is the end of a terminal. Closing
			// what is read from cannot lose anything.
			_ = p.from.Close()
			_ = p.to.Close() // it has said what it lost with each write
			return
		}
	}
}

// keep ignores errors: a full disk must not stop the process that writes. What
// is lost is counted and logged by the other side.
func (p *pump) keep(data []byte) {
	if len(data) > 0 {
		_, _ = p.to.Write(data)
	}
}

// settle is called once the process has ended and returns when all that it wrote
// is kept.
func (p *pump) settle() {
	if p.terminal {
		timer := time.NewTimer(terminalSettle)
		defer timer.Stop()
		select {
		case <-p.done:
		case <-timer.C:
		}
		return
	}
	// A deadline in the past wakes the pump, which then takes what the pipe
	// holds without waiting for more.
	if err := p.from.SetReadDeadline(time.Unix(1, 0)); err != nil {
		<-p.done // it is closed already
		return
	}
	select {
	case <-p.done:
	case <-p.settled:
	}
}

// settleNow empties the pipe, but takes no more than a pipe can hold: whatever
// children of the process go on writing came later.
func (p *pump) settleNow(buffer []byte) error {
	if err := p.from.SetReadDeadline(time.Time{}); err != nil {
		return err
	}
	conn, err := p.from.SyscallConn()
	if err != nil {
		return err
	}
	for left := pipeCapacity(conn); left > 0; {
		var n int
		var readErr error
		err := conn.Read(func(fd uintptr) bool {
			n, readErr = ignoringEINTR(func() (int, error) { return unix.Read(int(fd), buffer) })
			return true // never wait
		})
		if err != nil {
			return err
		}
		if errors.Is(readErr, unix.EAGAIN) {
			break
		}
		if readErr != nil {
			return readErr
		}
		if n == 0 {
			return io.EOF
		}
		p.keep(buffer[:n])
		left -= n
	}
	p.once.Do(func() { close(p.settled) })
	return nil
}

func pipeCapacity(conn syscall.RawConn) int {
	size := pumpBuffer
	// Without an answer the default of Linux, which is the same, is right.
	_ = conn.Control(func(fd uintptr) {
		if n, err := unix.FcntlInt(fd, unix.F_GETPIPE_SZ, 0); err == nil {
			size = n
		}
	})
	return size
}

func ignoringEINTR(fn func() (int, error)) (int, error) {
	for {
		n, err := fn()
		if !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}
