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
