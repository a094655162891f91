package orchestrator

import (
	"context"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/store"
)

// What sessions ask of their tasks. Locks: the sandbox's, the session's, then the tasks'.

// enqueueSystemTask puts a session's own preparation first in its queue.
func (s *Service) enqueueSystemTask(_ context.Context, _ store.Tx, _ time.Time, _ sessionRow, _ string, _ time.Duration) error {
	return holdfast.E(holdfast.Unimplemented, holdfast.ReasonNotCapable, "sessions run no tasks yet")
}

// prepareLimit is how long a session's preparation may take.
const prepareLimit = 30 * time.Minute

// prepareScript fetches a repository into the workspace.
func prepareScript(_ holdfast.Repository) string { return "" }

// runningTask is the task that runs in a session; "" when none does.
func (s *Service) runningTask(_ context.Context, _ store.Tx, _ holdfast.SessionID) (holdfast.TaskID, error) {
	return "", nil
}

// cancelTasks ends what is QUEUED in a session for a reason, and asks the running
// task to end; repeating it is harmless.
func (s *Service) cancelTasks(_ context.Context, _ *unit, _ time.Time, _ holdfast.SessionID, _ *holdfast.Failure) error {
	return nil
}

// cancelRunning asks the running task of a session to end; repeating it is harmless.
func (s *Service) cancelRunning(_ context.Context, _ *unit, _ time.Time, _ holdfast.SessionID) error {
	return nil
}

// tasksOfLostBoot ends the running task of a boot before the one given, which is
// lost; with none given every task of the session ends.
func (s *Service) tasksOfLostBoot(_ context.Context, _ *unit, _ time.Time, _ holdfast.SessionID, _ int64) error {
	return nil
}

// queueOf is how many tasks wait in each of some sessions, and which run.
func (s *Service) queueOf(_ context.Context, _ store.Tx, _ []holdfast.SessionID) (map[holdfast.SessionID]queue, error) {
	return nil, nil
}

// queue is what a session shows of its tasks.
type queue struct {
	waiting int
	running holdfast.TaskID
}

// startNext starts the next task of a session that is READY, if there is one.
func (s *Service) startNext(_ holdfast.SessionID) {}
