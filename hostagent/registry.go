package hostagent

import (
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/reconcile"
)

// Registry is a host agent's part of the audit (contract: C3, F1): who notices
// what, by when, and what happens when a message comes twice, late or never.
func Registry() reconcile.Registry {
	return reconcile.Registry{
		Party:     "hostagent",
		Resources: []reconcile.Resource{instanceEntry(), copyEntry(), layerEntry()},
		Hops:      hopEntries(),
	}
}

func instanceEntry() reconcile.Resource {
	resting := func(state holdfast.InstanceState, authority, resolution string) reconcile.State {
		return reconcile.State{Name: string(state), Contradictable: true, Authority: authority, Sweep: SweepInstances, Resolution: resolution}
	}
	return reconcile.Resource{
		Kind: "instance", Tables: []string{"instances/INSTANCE/INCARNATION/record.json"}, Reporter: "guest agent",
		FirstContact: reconcile.Notice{Sweep: SweepInstances, By: holdfast.InstanceBootAfter},
		States: []reconcile.State{
			{Name: string(holdfast.InstancePreparing), Transitional: true, Deadline: holdfast.InstancePrepareAfter, Authority: "runtime", Sweep: SweepInstances,
				Resolution: "EXITED with the reason, whatever was prepared given back"},
			{Name: string(holdfast.InstanceBooting), Transitional: true, Deadline: holdfast.InstanceBootAfter, Authority: "guest, over its own socket", Sweep: SweepInstances,
				Resolution: "RUNNING when the guest says so, else EXITED with the reason and log tail"},
			{Name: string(holdfast.InstanceStopping), Transitional: true, Deadline: holdfast.InstanceStoppingAfter, Authority: "runtime", Sweep: SweepInstances,
				Resolution: "an end is carried on; a removal is ordered again by the fleet, which alone retries it"},
			resting(holdfast.InstanceRunning, "runtime", "EXITED with the reason and log tail when the runtime itself says that it ended; a failed look changes nothing"),
			resting(holdfast.InstanceSuspended, "runtime", "EXITED, SAVED_STATE_GONE or HOST_REBOOTED, when the runtime itself says that it is gone"),
			resting(holdfast.InstanceExited, "runtime", "what the runtime has of it nevertheless is given back"),
			resting(holdfast.InstanceAbsent, "runtime", "what the runtime has of it nevertheless is given back; the tombstone is purged after 7 days"),
			// What the runtime has and no record names.
			{Name: "ORPHAN", Transitional: true, Deadline: holdfast.OrphanGrace, Authority: "runtime, then the records", Sweep: SweepOrphans,
				Resolution: "destroyed, leaving a tombstone; nothing at all when it would be unusually much"},
		},
	}
}

func copyEntry() reconcile.Resource {
	return reconcile.Resource{
		Kind: "checkpoint-copy", Tables: []string{"checkpoints/CHECKPOINT/record.json"},
		States: []reconcile.State{
			{Name: string(holdfast.CopyCopying), Transitional: true, Deadline: holdfast.CheckpointAfter, Authority: "the instance's record; the attempt in progress", Sweep: SweepCopies,
				Resolution: "FAILED with the reason when its time or its instance is over, parts removed; nobody copies anew but a level"},
			// Told as they are: the blob store's truth is asked by whoever owns the checkpoint.
			{Name: string(holdfast.CopyPresent)}, {Name: string(holdfast.CopyFailed)}, {Name: string(holdfast.CopyAbsent)},
		},
	}
}

func layerEntry() reconcile.Resource {
	return reconcile.Resource{
		Kind: "layer", Tables: []string{"layers/LAYER/image.json"},
		States: []reconcile.State{
			{Name: "UNUSED", Transitional: true, Deadline: 24 * time.Hour, Authority: "the records of instances", Sweep: SweepLayers,
				Resolution: "removed: at once where they are more than 10 GiB, the longest unused first; never one that a record names"},
		},
	}
}

func hopEntries() []reconcile.Hop {
	return []reconcile.Hop{
		{
			Name: "H3", From: "fleet", To: "host agent", Message: "EnsureInstance, EnsureCheckpoint",
			Twice: "joined: one convergence, one boot, the same answer; one copy under one key, whichever claim asks",
			Late:  "a lower generation or incarnation is refused, naming the one seen; RUNNING or PRESENT after a tombstone is answered ABSENT; too old for a tombstone is refused",
			Never: "nothing happens here; the fleet asks, and its caller sends the level again; a copy that nobody orders again fails at its deadline, its parts removed",
		},
		{
			Name: "H4", From: "host agent", To: "runtime", Message: "prepare, start, suspend, resume, checkpoint, stop",
			Twice: "each call can be repeated; a start that is recorded is never made anew",
			Late:  "calls on one instance never overlap, and each look is made before the next step",
			Never: "what is recorded is compared with the runtime at every start, level and sweep",
		},
		{
			Name: "H5", From: "guest agent", To: "orchestrator", Message: "instance.ready, instance.failed, passed on by the gateway",
			Twice: "passed on twice, under the same id",
			Late:  "passed on: the receiver judges it by its incarnation",
			Never: "the host asks the booting guest itself, and ends a boot that takes more than 2 min",
		},
		{
			Name: "H6", From: "guest agent", To: "orchestrator", Message: "guest.telemetry, passed on by the gateway",
			Twice: "passed on twice", Late: "passed on", Never: "nothing depends on it",
		},
		{
			Name: "H7", From: "host agent", To: "fleet", Message: "instance.observed, heartbeat",
			Twice: "one id for one event, over restarts too; heartbeat numbers rise over restarts",
			Late:  "the fleet judges it by incarnation and generation",
			Never: "three attempts, then forgotten: the fleet asks whenever it lacks the fact, and every minute",
		},
		{
			Name: "H11", From: "orchestrator", To: "guest agent", Message: "process and file calls, passed on by the host agent",
			Twice: "with a request id a process starts once per incarnation; input is taken once by its offset; a file is replaced whole",
			Late:  "another incarnation than the current one is refused",
			Never: "the caller is told UNAVAILABLE; output is read from the host's spool meanwhile",
		},
	}
}
