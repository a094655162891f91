package mutant

import (
	"cmp"
	"slices"
)

// All is every seeded bug, in the order of the traps.
func All() []Mutant {
	all := slices.Concat(creates(), recordedKeys(), claims(), deliveries(), retries(), sweeps(), reads(), levels(), times(), edges(), stores(), boots(), copies(), databases(), again(), againLate())
	slices.SortStableFunc(all, func(a, b Mutant) int { return cmp.Compare(a.Trap, b.Trap) })
	return all
}

// tests are a package's own.
func tests(pkg string, names ...string) Notice {
	return Notice{Rung: Tests, Package: pkg, Tests: names}
}

// noticed lists where a bug shows, the cheapest first.
func noticed(by ...Notice) []Notice { return by }

// edit is the one change that most bugs are.
func edit(before, after string) []Edit { return []Edit{{Old: before, New: after}} }

// model explores the decisions of a party.
func model(pkg, name string) Notice {
	return Notice{Rung: Model, Package: pkg, Tests: []string{name}}
}

// instanceModel and hostModel are the fleet's and the host agent's.
func instanceModel() Notice {
	return model("fleet", "TestProveModel_AnIncarnationIsPlacedOnceInEveryState")
}

func hostModel() Notice {
	return model("hostagent", "TestProveModel_AnIncarnationBootsOnceAtItsHostInEveryState")
}

// schedules are those of a group commit.
func schedules() Notice {
	return Notice{Rung: Interleavings, Package: "store/sqlite", Tests: []string{"TestProveGroups_EveryScheduleOfAGroupAnswersEachMemberTruly"}}
}

// Whole is the slice of a rung that runs the whole system, or all of its races. Any bug
// can be held against it, whether or not it is expected to be noticed there; false where
// a rung is a package's own.
func Whole(r Rung) (Notice, bool) {
	switch r {
	case Interleavings:
		return Notice{r, "simulation/interleaving", []string{"TestProveInterleavings_EveryOrderOfEachRaceComesToTheSame"}}, true
	case Simulation:
		return Notice{r, "simulation", []string{"TestProveSimulation"}}, true
	case CrashPoints:
		return Notice{r, "simulation/crashpoint", []string{"TestProveCrashPoints"}}, true
	case Kills:
		return Notice{r, "internal/kill", []string{"TestProve5_KillsLoseNothingRepeatNothingAndLeaveNothing"}}, true
	case Histories:
		return Notice{r, "simulation/history", []string{"TestProveHistoriesHaveAnOrder"}}, true
	}
	return Notice{}, false
}
