package simulation

import (
	"regexp"
	"slices"
)

// particular is what differs between two tellings of the same violation.
var particular = regexp.MustCompile(`[a-z]{2,3}….{4}|[0-9]+|pr-\S+`)

// kindOf is a violation without whom it is about.
func kindOf(violation string) string { return particular.ReplaceAllString(violation, "*") }

// Shrink takes elements out of a schedule as long as the same violation stays, with
// at most so many runs. run gives a schedule's violations.
func Shrink(s Schedule, violation string, runs int, run func(Schedule) []string) Schedule {
	kind := kindOf(violation)
	fails := func(candidate Schedule) bool {
		if runs <= 0 {
			return false
		}
		runs--
		return slices.ContainsFunc(run(candidate), func(v string) bool { return kindOf(v) == kind })
	}
	for size := max(1, s.Len()/2); ; {
		shrunk := false
		for at := 0; at < s.Len() && runs > 0; {
			if candidate := s.without(at, size); fails(candidate) {
				s, shrunk = candidate, true
			} else {
				at += size
			}
		}
		if runs <= 0 || size == 1 && !shrunk {
			break
		}
		size = max(1, size/2)
	}
	for _, candidate := range s.simpler() {
		if fails(candidate) {
			s = candidate
		}
	}
	return s
}

// without leaves out some elements, calls before troubles.
func (s Schedule) without(at, n int) Schedule {
	calls := len(s.Ops)
	to := min(at+n, s.Len())
	s.Ops = slices.Delete(slices.Clone(s.Ops), min(at, calls), min(to, calls))
	s.Troubles = slices.Delete(slices.Clone(s.Troubles), max(at-calls, 0), max(to-calls, 0))
	return s
}

// simpler are schedules with fewer parties and without skews.
func (s Schedule) simpler() []Schedule {
	var all []Schedule
	without := s
	without.Skews, without.Watched = nil, false
	all = append(all, without)
	for _, n := range []func(*Schedule) *int{
		func(s *Schedule) *int { return &s.Orchestrators }, func(s *Schedule) *int { return &s.Fleets }, func(s *Schedule) *int { return &s.Hosts },
	} {
		fewer := s
		if *n(&fewer) > 1 {
			*n(&fewer) = 1
			all = append(all, fewer)
		}
	}
	return all
}
