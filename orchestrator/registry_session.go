package orchestrator

import (
	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/reconcile"
)

func sessionEntry() reconcile.Resource {
	const follows = "its sandbox's end is its own, in the same transaction"
	return reconcile.Resource{
		Kind: "session", Tables: []string{"session"}, Reporter: "guest agent",
		// A session hears of its sandbox in the transaction that changes that.
		FirstContact: reconcile.Notice{Sweep: SweepOperations, By: holdfast.InstanceBootAfter + holdfast.OperationUnclaimedAfter},
		// What nothing is done with is suspended: its time of activity is over.
		Lifetime: reconcile.Notice{Sweep: SweepIdle, By: idleSweepEvery},
		States: []reconcile.State{
			{Name: string(holdfast.SessionWaiting), Transitional: true, Deadline: holdfast.SessionWaitingAfter, Authority: "its build",
				Sweep: SweepSessionWaiting, Resolution: "CREATING, or FAILED with the build's reason, when the build is no longer BUILDING"},
			{Name: string(holdfast.SessionCreating), Transitional: true, Deadline: holdfast.OperationUnclaimedAfter, Authority: "fleet, then host",
				Sweep: SweepOperations, Resolution: "its sandbox's create, or replacement, is carried on; " + follows},
			{Name: string(holdfast.SessionReady), Contradictable: true, Authority: "fleet, then host", Sweep: SweepInstances,
				Resolution: "FAILED, or CREATING again as its policy says, with its sandbox; " + follows},
			{Name: string(holdfast.SessionSuspended), Contradictable: true, Authority: "fleet, then host", Sweep: SweepInstances,
				Resolution: "FAILED, or CREATING again as its policy says, with its sandbox; " + follows},
			{Name: string(holdfast.SessionFailed)},
			{Name: string(holdfast.SessionDeleting), Transitional: true, Deadline: holdfast.OperationUnclaimedAfter, Authority: "its tasks and its guest, then fleet and host",
				Sweep: SweepSessionOperations, Resolution: "the task, the checkpoint and the hook that it waits for are looked at, then its sandbox is deleted, for ever"},
			{Name: string(holdfast.SessionDeleted)},
		},
	}
}
