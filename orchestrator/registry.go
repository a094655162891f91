package orchestrator

import (
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/reconcile"
)

// Registry is the orchestrator's part of the audit (contract: C3, F1): who
// notices what, by when, and what happens when a message comes twice, late or
// never.
func Registry() reconcile.Registry {
	return reconcile.Registry{
		Party:     "orchestrator",
		Resources: []reconcile.Resource{sandboxEntry(), checkpointEntry(), sessionEntry(), taskEntry(), operationEntry(), actionEntry(), buildEntry()},
		Deliveries: []reconcile.Delivery{
			{Kind: string(holdfast.DeliveryReady), From: "guest agent", Sweep: SweepOperations},
			{Kind: string(holdfast.DeliveryFailed), From: "guest agent", Sweep: SweepOperations},
			{Kind: string(holdfast.DeliveryTaskComplete), From: "guest agent", Sweep: SweepTasks},
			{Kind: string(holdfast.DeliverySetupReady), From: "guest agent", Sweep: SweepBuilds},
			{Kind: string(holdfast.DeliverySetupFailed), From: "guest agent", Sweep: SweepBuilds},
			{Kind: string(holdfast.DeliveryExited), From: "fleet", Sweep: SweepInstances},
			// Nothing is kept of telemetry; a guest that is gone is found without it.
			{Kind: string(holdfast.TelemetryGuest), From: "guest agent", Sweep: SweepInstances},
		},
		Hops: hopEntries(),
		Tables: append([]reconcile.Table{
			{Name: "request", Why: "the keys of creates are kept as long as their project (A3); one is written with its sandbox and never changes"},
			{Name: "process_request", Sweep: SweepBoots, Why: "the boot on which a process's request id was first used; of a boot that is over it goes after 7 days"},
			{Name: "session_label", Sweep: SweepSessionPurge, Why: "a session's labels go with its tombstone, when that was kept for 7 days"},
			{Name: "delivery", Sweep: SweepInbox},
			{Name: "layer_use", Sweep: SweepBlobs, Why: "what is made of which blobs; rows go with their sandbox or checkpoint, in the transaction that ends it"},
			{Name: "lineage", Why: "one row: whose database this is; it changes by an operator's recovery alone"},
			{Name: "sandbox_version", Why: "the last number of a project's changes, one row per project; it only rises"},
			{Name: "project", Why: "has no state: it is made once, lives for ever, and its quotas are set by one transaction"},
			{Name: "api_key", Why: "valid until it is revoked, by one transaction; servers ask at most 5 s later, and nothing waits on it"},
			{Name: "quota_shard", Sweep: SweepQuotas},
			{Name: "event_project", Why: "whose events are recorded, and their last number, one row per project; the number only rises"},
			{Name: "event", Sweep: SweepEvents},
			{Name: "webhook", Why: "has no state: it is made once and deleted once, and what is to be sent to it is in the outbox"},
			{Name: "outbox", Sweep: SweepEvents, Why: "sent by the dispatcher, which looks every second; the sweep starts one in a process that has none yet"},
			{Name: "hook", Why: "has no state: it is made once and deleted once"},
		}, environmentTables()...),
	}
}

func sandboxEntry() reconcile.Resource {
	return reconcile.Resource{
		Kind: "sandbox", Tables: []string{"sandbox", "sandbox_label"}, Reporter: "guest agent",
		// The host ends a boot without a word after 2 min; an attempt that is at it
		// hears so at once, and one that is not is carried on when it was idle for 30 s.
		FirstContact: reconcile.Notice{Sweep: SweepOperations, By: holdfast.InstanceBootAfter + holdfast.OperationUnclaimedAfter},
		Lifetime:     reconcile.Notice{Sweep: SweepExpiry, By: holdfast.ExpiryAfter},
		States: []reconcile.State{
			{Name: string(holdfast.SandboxCreating), Transitional: true, Deadline: holdfast.OperationUnclaimedAfter,
				Authority: "fleet, then host", Sweep: SweepOperations,
				Resolution: "the create, or the replacement of a lost instance, is carried on: READY, or FAILED with the reason and log tail; FAILED after 10 answered attempts or 15 min of them"},
			{Name: string(holdfast.SandboxReady), Contradictable: true, Authority: "fleet, then host", Sweep: SweepInstances,
				Resolution: "FAILED, or replaced as its policy says, when the fleet itself says that the instance ended or is unknown; a stale answer changes nothing"},
			{Name: string(holdfast.SandboxSuspended), Contradictable: true, Authority: "fleet, then host", Sweep: SweepInstances,
				Resolution: "FAILED, or replaced as its policy says, when the fleet itself says that the instance ended or is unknown; a stale answer changes nothing"},
			{Name: string(holdfast.SandboxFailed), Contradictable: true, Authority: "fleet, then host", Sweep: SweepInstances,
				Resolution: "an instance that is there nevertheless is ended, its output kept"},
			{Name: string(holdfast.SandboxDeleting), Transitional: true, Deadline: holdfast.OperationUnclaimedAfter,
				Authority: "fleet, then host", Sweep: SweepOperations, Resolution: "the delete is carried on, for ever"},
			{Name: string(holdfast.SandboxDeleted), Contradictable: true, Authority: "fleet, then host", Sweep: SweepInstances,
				Resolution: "an instance that is there nevertheless is removed; the tombstone is purged after 7 days (sandbox-purge), its request id is kept"},
		},
	}
}

func checkpointEntry() reconcile.Resource {
	return reconcile.Resource{
		Kind: kindCheckpoint, Tables: []string{"checkpoint", "checkpoint_label"}, Reporter: "host agent",
		// Nobody reports: the operation that takes it is idle for 30 s, and is carried on.
		FirstContact: reconcile.Notice{Sweep: SweepOperations, By: holdfast.OperationUnclaimedAfter},
		Lifetime:     reconcile.Notice{Sweep: SweepCheckpointPurge, By: time.Minute}, // of its tombstone
		States: []reconcile.State{
			{Name: string(holdfast.CheckpointCreating), Transitional: true, Deadline: holdfast.CheckpointAfter,
				Authority: "fleet, then host; blob store", Sweep: SweepOperations,
				Resolution: "its operation on the sandbox is carried on: READY once the blob store has the copy, else FAILED with the reason; one without an operation is FAILED by checkpoint-copies"},
			{Name: string(holdfast.CheckpointReady)}, // the same for ever: a blob that is missing is found by the fork that needs it
			{Name: string(holdfast.CheckpointFailed), Contradictable: true, Authority: "fleet, then host", Sweep: SweepCheckpoints,
				Resolution: "a copy that goes on nevertheless is ended, and what it left is removed (checkpoint-blobs)"},
			{Name: string(holdfast.CheckpointDeleting), Transitional: true, Deadline: holdfast.CheckpointAfter,
				Authority: "fleet, then host; blob store", Sweep: SweepDeletions, Resolution: "the delete is carried on, for ever"},
			{Name: string(holdfast.CheckpointDeleted), Contradictable: true, Authority: "blob store", Sweep: SweepBlobs,
				Resolution: "copies that nothing is made of any more are removed; the tombstone is purged after 7 days, when there are none (checkpoint-purge)"},
		},
	}
}

func operationEntry() reconcile.Resource {
	return reconcile.Resource{
		Kind: "operation", Tables: []string{"operation"},
		// The journal goes with its resource's tombstone, when that was kept for 7 days.
		Lifetime: reconcile.Notice{Sweep: SweepPurge, By: time.Minute},
		States: []reconcile.State{
			{Name: string(holdfast.OperationPending), Transitional: true, Deadline: holdfast.OperationUnclaimedAfter,
				Authority: "fleet, then host", Sweep: SweepOperations,
				Resolution: "carried on under a claim of its own, a checkpoint's delete by checkpoint-operations; given up with a reason after answered attempts alone; a delete never"},
			{Name: string(holdfast.OperationDone)},
			{Name: string(holdfast.OperationFailed)},
			{Name: string(holdfast.OperationSuperseded)},
		},
	}
}

func actionEntry() reconcile.Resource {
	return reconcile.Resource{
		Kind: "hook-action", Tables: []string{"hook_action"},
		Lifetime: reconcile.Notice{Sweep: SweepInbox, By: time.Minute},
		States: []reconcile.State{
			{Name: string(holdfast.HookActionPending), Transitional: true, Deadline: holdfast.HookActionAfter,
				Authority: "the service that it calls", Sweep: SweepActions,
				Resolution: "carried out under a claim and the delivery's request ids; FAILED with the reason when it is refused, or when it was tried for 3 days"},
			{Name: string(holdfast.HookActionDone)},
			{Name: string(holdfast.HookActionFailed)},
		},
	}
}

func hopEntries() []reconcile.Hop {
	return []reconcile.Hop{
		{
			Name: "H1", From: "caller", To: "orchestrator", Message: "CreateSandbox, SuspendSandbox, ResumeSandbox, DeleteSandbox, ExtendSandbox, SetSandboxLifetime, CreateCheckpoint, DeleteCheckpoint, CreateEnvironment, BuildEnvironment, DeleteEnvironment",
			Twice: "a create with the same request id is the same sandbox, checkpoint or build, and an environment of the same recipe the same version; the others find the wanted state or join what is pending; while an attempt is live: ABORTED, after a wait of at most 5 s",
			Late:  "a repeated create answers with the resource as it is now, a tombstone included; what no longer fits the state is refused, and if_generation makes any of them conditional",
			Never: "nothing was recorded, so nothing happens; what was recorded is carried on by the sweep, whether or not its caller returns",
		},
		{
			Name: "H2", From: "orchestrator", To: "fleet", Message: "EnsureInstance, EnsureCheckpoint",
			Twice: "the same generation joins: the fleet places nothing twice, and answers alike; a checkpoint is copied once, and names one copy",
			Late:  "a lower generation or incarnation is refused, naming the one seen; the intent is issued anew above it; a copy made late is named by nothing, and removed",
			Never: "UNAVAILABLE: the claim ends, the operation stays pending, and a repeat or the sweep sends the level again",
		},
		{
			Name: "H5", From: "guest agent", To: "orchestrator", Message: "instance.ready, instance.failed, task.complete, environment.ready, environment.failed",
			Twice: "the delivery's id is known for that boot: 2xx, nothing done",
			Late:  "of an incarnation that is over, of a sandbox past CREATING, or of a build that has ended: recorded and ignored; ahead of its sandbox's row: 503, so it comes again",
			Never: "the host hears readiness from its own guest, so the attempt's level is answered all the same; the sweep carries on what has no attempt",
		},
		{
			Name: "H6", From: "guest agent", To: "orchestrator", Message: "guest.telemetry",
			Twice: "read and dropped",
			Late:  "read and dropped",
			Never: "nothing depends on it",
		},
		{
			Name: "H8", From: "fleet", To: "orchestrator", Message: "instance.exited",
			Twice: "the delivery's id is known: 2xx, nothing done; the sweep and the delivery make one FAILED",
			Late:  "of an incarnation that is over, or of a sandbox FAILED, DELETING or DELETED: recorded and ignored; ahead of its sandbox's row: 503, so it comes again",
			Never: "the fleet's outbox tries for 5 days; the sweep compares with the fleet every minute, and asks by name before it makes a sandbox FAILED",
		},
		{
			Name: "H9", From: "orchestrator", To: "webhook", Message: "events",
			Twice: "an answer that was lost makes us send it again under the same id, which the receiver keeps",
			Late:  "a resource's events go one after another, so a late one keeps only its own resource's later ones back",
			Never: "tried for 5 days with pauses up to 6 h, then a dead letter, which is listed and can be replayed for 30 days; another 4xx is one at once",
		},
		{
			Name: "H10", From: "provider", To: "orchestrator", Message: "webhooks",
			Twice: "the id is known for that source: 202, nothing done",
			Late:  "an id is known for 30 days, whatever it comes to; a Standard Webhook that is 5 min old is refused",
			Never: "nothing was recorded, so nothing happens: it is the provider's to send again; what was answered 202 is carried out by the sweep",
		},
		{
			Name: "H11", From: "orchestrator", To: "guest agent", Message: "process and file calls, through the host agent",
			Twice: "nothing here repeats a call; a start with a request id starts once per incarnation, input at an offset already taken is dropped, a file is replaced whole",
			Late:  "the call names its incarnation, and another one refuses it",
			Never: "UNAVAILABLE to the caller, who decides; the cached address of the host is forgotten, and the fleet asked for it by the next call",
		},
	}
}
