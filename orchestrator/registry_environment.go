package orchestrator

import (
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/reconcile"
)

// buildEntry is a build's part of the registry.
func buildEntry() reconcile.Resource {
	return reconcile.Resource{
		Kind: kindBuild, Tables: []string{"environment_build"}, Reporter: "guest agent",
		// A builder that never boots is its sandbox's to notice, and its end is the build's.
		FirstContact: reconcile.Notice{Sweep: SweepOperations, By: holdfast.InstanceBootAfter + holdfast.OperationUnclaimedAfter},
		Lifetime:     reconcile.Notice{Sweep: SweepBuildPurge, By: time.Minute},
		States: []reconcile.State{
			{Name: string(holdfast.BuildBuilding), Transitional: true, Deadline: holdfast.BuildSilence,
				Authority: "host, by the setup's process; fleet", Sweep: SweepBuilds,
				Resolution: "carried on from where it was: READY with the builder's disk, or FAILED with the reason and log tail; silence alone only asks, and its time (30 min unless the recipe says otherwise) ends it with its builder"},
			{Name: string(holdfast.BuildReady), Contradictable: true, Authority: "the builder's sandbox", Sweep: SweepBuilders,
				Resolution: "a builder that is there nevertheless is removed; one that a newer build has followed is purged after 7 days (build-purge)"},
			{Name: string(holdfast.BuildFailed), Contradictable: true, Authority: "the builder's sandbox", Sweep: SweepBuilders,
				Resolution: "its builder is removed once the setup's log is kept; the record is purged after 7 days (build-purge)"},
			{Name: string(holdfast.BuildSuperseded), Contradictable: true, Authority: "the builder's sandbox", Sweep: SweepBuilders,
				Resolution: "its builder is removed; the record is purged after 7 days (build-purge)"},
		},
	}
}

// environmentTables are tables of environments that belong to no resource with states.
func environmentTables() []reconcile.Table {
	return []reconcile.Table{
		{Name: "environment", Why: "a name with its newest recipe, changed by one transaction of its caller; it waits for nothing"},
		{Name: "environment_version", Why: "recipes as they were; one is written with its version and never changes"},
	}
}
