package orchestrator

import (
	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/reconcile"
)

func taskEntry() reconcile.Resource {
	return reconcile.Resource{
		Kind: "task", Tables: []string{"task"}, Reporter: "guest agent",
		FirstContact: reconcile.Notice{Sweep: SweepTasks, By: holdfast.TaskSilence},
		Lifetime:     reconcile.Notice{Sweep: SweepTasks, By: holdfast.TaskSilence},
		States: []reconcile.State{
			{Name: string(holdfast.TaskQueued), Transitional: true, Deadline: holdfast.TaskQueuedAfter, Authority: "its session",
				Sweep: SweepTasks, Resolution: "started when its session is READY and nothing runs; ended with its session, in the transaction of that end"},
			{Name: string(holdfast.TaskRunning), Transitional: true, Deadline: holdfast.TaskSilence, Authority: "guest, by the task's process, or its host's spool",
				Sweep: SweepTasks, Resolution: "its recorded end; TIMED_OUT only if the guest says that it still ran at its limit; FAILED, INSTANCE_LOST, with its boot; what does not answer changes nothing"},
			{Name: string(holdfast.TaskSucceeded)},
			{Name: string(holdfast.TaskFailed)},
			{Name: string(holdfast.TaskCancelled)},
			{Name: string(holdfast.TaskTimedOut)},
		},
	}
}
