package guestagent

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// reaper is the one place that waits for children. As PID 1 it inherits every
// orphan of the instance; all of them are reaped, and the exit codes of those
// that were started here are kept. Starting and reaping exclude one another, so
// that a child is known before it can be reaped, and a signal never meets the
// number of a process that is gone.
type reaper struct {
	everyone bool // PID 1: all processes are ours to end
	signals  chan os.Signal

	mu      sync.Mutex
	waiting map[int]chan int // exit codes by pid; each holds one
	closed  bool
	idle    chan struct{} // closed when closed and nobody is left
}

func newReaper(everyone bool) *reaper {
	r := &reaper{
		everyone: everyone,
		signals:  make(chan os.Signal, 1),
		waiting:  map[int]chan int{},
		idle:     make(chan struct{}),
	}
	// One pending signal is enough: each makes reap take all there are.
	signal.Notify(r.signals, unix.SIGCHLD)
	go func() {
		for range r.signals {
			r.reap()
		}
	}()
	return r
}

var errClosing = errors.New("the instance is shutting down")

// start runs fork, which makes one child, and returns where its exit code arrives.
func (r *reaper) start(fork func() (pid int, err error)) (int, <-chan int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return 0, nil, errClosing
	}
	pid, err := fork()
	if err != nil {
		return 0, nil, err
	}
	code := make(chan int, 1)
	r.waiting[pid] = code
	return pid, code, nil
}

// reap takes every child that has ended.
func (r *reaper) reap() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, unix.WNOHANG, nil)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if pid <= 0 {
			// An error here is ECHILD: nobody is left.
			r.rest(err != nil)
			return
		}
		if code, ours := r.waiting[pid]; ours {
			delete(r.waiting, pid)
			code <- exitCode(status)
		}
	}
}

// rest notes that nothing is left to wait for after a close.
func (r *reaper) rest(childless bool) {
	if !r.closed || len(r.waiting) > 0 || r.everyone && !childless {
		return
	}
	select {
	case <-r.idle:
	default:
		close(r.idle)
	}
}

func exitCode(status unix.WaitStatus) int {
	if status.Signaled() {
		return 128 + int(status.Signal())
	}
	return status.ExitStatus()
}

// signal sends to the group of a child that has not been reaped.
func (r *reaper) signal(pid int, sig unix.Signal) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, running := r.waiting[pid]; !running {
		return ended()
	}
	if err := unix.Kill(-pid, sig); err != nil {
		return fmt.Errorf("signal %d: %w", pid, err)
	}
	return nil
}

// close ends everything: first asking, after grace without.
func (r *reaper) close(grace time.Duration) error {
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	// A stopped process takes a request to end only once it goes on.
	err := errors.Join(r.signalAll(unix.SIGTERM), r.signalAll(unix.SIGCONT))
	r.reap()
	if !r.rested(grace) {
		err = errors.Join(err, r.signalAll(unix.SIGKILL))
		r.reap()
		if !r.rested(grace) {
			err = errors.Join(err, errors.New("some processes do not end even when killed"))
		}
	}
	return err
}

func (r *reaper) rested(within time.Duration) bool {
	timer := time.NewTimer(within)
	defer timer.Stop()
	select {
	case <-r.idle:
		return true
	case <-timer.C:
		return false
	}
}

func (r *reaper) signalAll(sig unix.Signal) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.everyone {
		if err := unix.Kill(-1, sig); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("signal all processes: %w", err)
		}
		return nil
	}
	var errs []error
	for pid := range r.waiting {
		if err := unix.Kill(-pid, sig); err != nil && !errors.Is(err, unix.ESRCH) {
			errs = append(errs, fmt.Errorf("signal %d: %w", pid, err))
		}
	}
	return errors.Join(errs...)
}
