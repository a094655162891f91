package mutant

import (
	"cmp"
	"slices"
)

// All is every seeded bug, in the order of the traps.
func All() []Mutant {
	all := slices.Concat(creates(), recordedKeys(), claims(), deliveries(), retries(), sweeps(), reads(), levels(), times(), edges(), stores(), boots(), databases(), again(), againLate())
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
