package fleet

import (
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/reconcile"
)

// Registry is the fleet's part of the audit (contract: C3, F1): who notices what,
// by when, and what happens when a message comes twice, late or never.
func Registry() reconcile.Registry {
	return reconcile.Registry{
		Party:     "fleet",
		Resources: []reconcile.Resource{instanceEntry(), hostEntry(), dutyEntry()},
		Deliveries: []reconcile.Delivery{
			{Kind: string(holdfast.DeliveryObserved), From: "host agent", Sweep: SweepOverdue},
			{Kind: string(holdfast.TelemetryHeartbeat), From: "host agent", Sweep: SweepHosts},
		},
		Hops: hopEntries(),
		Tables: []reconcile.Table{
			{Name: "delivery", Sweep: SweepPurge},
			{Name: "outbox", Sweep: SweepPurge, Why: "pending rows are sent by the dispatcher's own loop, dead letters stay for people"},
			{Name: "lineage", Sweep: SweepInstances, Why: "one row: whose database this is, held against every order and every heartbeat"},
			{Name: "leftover", Sweep: SweepInstances, Why: "its host ends it; of a host that is given up, fleet-losses gives its room back"},
		},
	}
}

func instanceEntry() reconcile.Resource {
	transitional := func(state holdfast.InstanceState, after time.Duration, sweep, resolution string) reconcile.State {
		return reconcile.State{Name: string(state), Transitional: true, Deadline: after, Authority: "host", Sweep: sweep, Resolution: resolution}
	}
	resting := func(state holdfast.InstanceState) reconcile.State {
		return reconcile.State{Name: string(state), Contradictable: true, Authority: "host", Sweep: SweepInstances,
			Resolution: "its host's word: kept, or EXITED when the host itself does not know it; UNKNOWN while the host is silent"}
	}
	return reconcile.Resource{
		Kind: "instance", Tables: []string{"instance"}, Reporter: "host agent",
		FirstContact: reconcile.Notice{Sweep: SweepOverdue, By: holdfast.InstancePrepareAfter},
		States: []reconcile.State{
			transitional(holdfast.InstancePlaced, holdfast.InstancePrepareAfter, SweepOverdue,
				"what the host says; EXITED, with its room given back, when the host was never told or lost the order"),
			transitional(holdfast.InstancePreparing, holdfast.InstancePrepareAfter, SweepOverdue, "what the host says, progress included"),
			transitional(holdfast.InstanceBooting, holdfast.InstanceBootAfter, SweepOverdue, "what the host says: it ends a boot that takes too long"),
			transitional(holdfast.InstanceStopping, holdfast.InstanceStoppingAfter, SweepOverdue, "the level is sent again until the host confirms the end"),
			transitional(holdfast.InstanceUnknown, holdfast.InstanceUnknownAfter, SweepInstances, "what the host says once it answers; EXITED, lost, once its host is given up: after 30 min, or by its retirement"),
			resting(holdfast.InstanceRunning),
			resting(holdfast.InstanceSuspended),
			{Name: string(holdfast.InstanceExited), Contradictable: true, Authority: "host", Sweep: SweepInstances,
				Resolution: "one that runs nevertheless is destroyed after the grace period"},
			{Name: string(holdfast.InstanceAbsent), Contradictable: true, Authority: "host", Sweep: SweepInstances,
				Resolution: "one that is there nevertheless is destroyed after the grace period; the tombstone is purged after 7 days"},
		},
	}
}

func hostEntry() reconcile.Resource {
	return reconcile.Resource{
		Kind: "host", Tables: []string{"host"}, Reporter: "host agent",
		// A host that never beat is not in the table: nothing waits for it.
		FirstContact: reconcile.Notice{Sweep: SweepHosts, By: holdfast.HostSuspectAfter},
		States: []reconcile.State{
			{Name: string(holdfast.HostReady), Contradictable: true, Authority: "host", Sweep: SweepHosts,
				Resolution: "SUSPECT after 15 s of silence, asked first; its instances UNKNOWN"},
			{Name: string(holdfast.HostSuspect), Transitional: true, Deadline: holdfast.HostLostAfter, Authority: "host", Sweep: SweepHosts,
				Resolution: "READY when it answers or beats, LOST after 5 min"},
			{Name: string(holdfast.HostLost), Contradictable: true, Authority: "host", Sweep: SweepReturns,
				Resolution: "READY once it beats again and has ended what was replaced, failed or deleted; given up after 30 min (fleet-losses)"},
		},
	}
}

func dutyEntry() reconcile.Resource {
	return reconcile.Resource{
		Kind: "host-duty", Tables: []string{"host"}, // nobody reports: operators say
		States: []reconcile.State{
			{Name: string(holdfast.HostActive)},
			{Name: string(holdfast.HostCordoned)},
			{Name: string(holdfast.HostDraining), Transitional: true, Deadline: holdfast.HostDrainingAfter, Authority: "its instances", Sweep: SweepDraining,
				Resolution: "CORDONED when nothing is left there; until then shown, with what is left"},
			{Name: string(holdfast.HostRetired), Contradictable: true, Authority: "host", Sweep: SweepLosses,
				Resolution: "what it has is ended in the records; should it be heard again, on it too"},
		},
	}
}

func hopEntries() []reconcile.Hop {
	return []reconcile.Hop{
		{
			Name: "H2", From: "orchestrator", To: "fleet", Message: "EnsureInstance, EnsureCheckpoint",
			Twice: "the same generation joins: no second placement, the host is asked again, the same answer; a checkpoint's level is passed on again, and nothing is recorded of it",
			Late:  "a lower generation or incarnation is refused, naming the one seen; RUNNING for a tombstone is answered ABSENT; of what has ended no copy begins",
			Never: "the orchestrator's operation stays pending and its sweep sends the level again",
		},
		{
			Name: "H3", From: "fleet", To: "host agent", Message: "EnsureInstance, EnsureCheckpoint",
			Twice: "the host joins: an incarnation boots once, a checkpoint is copied once",
			Late:  "the host refuses a lower generation; after its tombstone it boots nothing, and copies nothing",
			Never: "HOST_UNREACHABLE, and the caller repeats; what stays PLACED is asked about after 15 min, an end that is wanted is sent again each minute",
		},
		{
			Name: "H7", From: "host agent", To: "fleet", Message: "instance.observed, heartbeat",
			Twice: "the delivery's id is known: 2xx, nothing done; a heartbeat with an old sequence changes nothing",
			Late:  "recorded, and ignored when it answers an older incarnation or generation, or is behind what is known",
			Never: "whoever reads an unfinished state asks the host (D1); the sweeps ask each host every minute; silence makes it SUSPECT, and its instances UNKNOWN; they are lost after 30 min of it, or by the operators' word",
		},
		{
			Name: "H8", From: "fleet", To: "orchestrator", Message: "instance.exited",
			Twice: "one id per incarnation: the orchestrator's inbox knows it",
			Late:  "the orchestrator judges it by incarnation and ignores what is over",
			Never: "the outbox retries for 5 days; the orchestrator's sweep finds the end within a minute",
		},
	}
}
