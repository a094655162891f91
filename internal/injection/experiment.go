package injection

import (
	"context"
	"errors"
	"fmt"

	"github.com/holdfast-dev/holdfast/transport"
)

// Cell is one of the matrix: what is to hold, and is tried by an experiment.
type Cell string

// The cells of a message, and that of a reporter that dies before it was heard.
const (
	Twice        Cell = "twice"
	Late         Cell = "late"
	Never        Cell = "never"
	FirstContact Cell = "first contact"
)

// experiment tries one cell, for one message or one resource.
type experiment struct {
	hop     string // H1 to H11; "" for FirstContact
	message string // EnsureInstance, instance.ready, …; for FirstContact the resource, as PARTY RESOURCE
	cell    Cell
	does    string // what is done, for a person
	run     func(*lab) (saw string, err error)
	// trustHosts has hosts not suspected for hours, in an experiment that puts the
	// clock forward without meaning them.
	trustHosts bool
}

// experiments is the table. A new hop or resource adds its rows here; without them
// the injection says that there is no experiment for it, and fails.
func experiments() []experiment {
	var all []experiment
	for _, part := range [][]experiment{calls(), levels(), copies(), runtimes(), guestDeliveries(), taskReports(), setupReports(), measurements(), facts(), exits(), guestCalls(), outgoing(), incoming(), firstContacts()} {
		all = append(all, part...)
	}
	return all
}

// fired holds that a fault happened: without it nothing was tried.
func (l *lab) fired(r *rule) error {
	if r.count() == 0 {
		return errNeverFired
	}
	return nil
}

// fires waits for a fault to happen to what goes on without its caller, who may have
// left before.
func (l *lab) fires(r *rule) error {
	return l.until("a message was lost", func() (bool, error) { return l.fired(r) == nil, nil })
}

// givenUp makes a call whose caller leaves when a fault has met it.
func (l *lab) givenUp(fault *rule, call func(ctx context.Context) error) error {
	ctx, leave := context.WithCancel(l)
	defer leave()
	done := make(chan error, 1)
	go func() { done <- call(ctx) }()
	err := l.fires(fault)
	leave()
	if called := <-done; called == nil {
		err = errors.Join(err, errors.New("the call succeeded, although its messages were lost"))
	}
	return err
}

var errNeverFired = errors.New("the fault never fired, so that nothing was tried")

func overlap(w *wire, a about) *rule { return w.times(1, transport.Overlap, a) }

// seen puts an observation in words, unless something went wrong.
func seen(err error, format string, args ...any) (string, error) {
	return fmt.Sprintf(format, args...), err
}
