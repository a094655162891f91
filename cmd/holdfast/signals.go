package main

import (
	"context"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"github.com/holdfast-dev/holdfast"
)

// patience is how many signals are forwarded before one stops the waiting.
const patience = 2

// signalForwarder sends the signals that this process gets to a remote one.
type signalForwarder struct {
	mu      sync.Mutex
	process holdfast.ProcessID
	ch      chan os.Signal
}

// forwardSignals forwards signals until stop, by send. Before the process is
// known, and from the third on, they give up instead.
func forwardSignals(ctx context.Context, giveUp func(), send func(context.Context, holdfast.ProcessID, string) error, note func(string)) *signalForwarder {
	f := &signalForwarder{ch: make(chan os.Signal, 8)}
	signal.Notify(f.ch, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)
	go func() {
		forwarded := 0
		for s := range f.ch {
			id := f.target()
			if id == "" || forwarded >= patience {
				giveUp()
				continue
			}
			forwarded++
			if err := send(ctx, id, signalName(s)); err != nil && ctx.Err() == nil {
				note("the signal was not delivered: " + oneLine(err.Error()))
			}
		}
	}()
	return f
}

func (f *signalForwarder) to(id holdfast.ProcessID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.process = id
}

func (f *signalForwarder) target() holdfast.ProcessID {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.process
}

func (f *signalForwarder) stop() {
	signal.Stop(f.ch)
	close(f.ch)
}

func signalName(s os.Signal) string {
	switch s {
	case syscall.SIGTERM:
		return "TERM"
	case syscall.SIGHUP:
		return "HUP"
	case syscall.SIGQUIT:
		return "QUIT"
	}
	return "INT"
}

// windowChanges tells of each change of the terminal's size until ctx ends.
func windowChanges(ctx context.Context) <-chan os.Signal {
	ch := make(chan os.Signal, 1)
	signal.Notify(ch, syscall.SIGWINCH)
	context.AfterFunc(ctx, func() {
		signal.Stop(ch)
		close(ch)
	})
	return ch
}
