package fleet

import (
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/store/lineage"
)

// planHost is what a silent host's health becomes. Answered is its own word,
// asked for just now. LOST needs a suspicion of the fleet's own that has lasted:
// a fleet that was down itself has heard nobody (T30).
func planHost(h hostRow, answered bool, now time.Time, l Limits) holdfast.HostHealth {
	silent := now.Sub(h.SeenAt)
	switch {
	case answered || silent < l.SuspectAfter:
		return holdfast.HostReady
	case h.Health == holdfast.HostReady:
		return holdfast.HostSuspect
	case h.Health == holdfast.HostSuspect && silent >= l.LostAfter && now.Sub(h.healthAt) >= l.LostAfter-l.SuspectAfter:
		return holdfast.HostLost
	}
	return h.Health
}

// sightings says since when instances on a host have been seen unwanted.
type sightings map[holdfast.InstanceRef]time.Time

// comparison is what the fleet recorded of a host's instances, before and after
// that host listed what it has.
type comparison struct {
	host     holdfast.HostID
	before   map[holdfast.InstanceID]row // those placed on the host
	observed []holdfast.Observation      // the host's list, complete
	after    map[holdfast.InstanceID]row // those placed on the host, and those it named
	lefts    map[holdfast.InstanceRef]bool
	unwanted sightings // from the run before
	now      time.Time
	grace    time.Duration
	lineage  lineage.Lineage
}

// instancePlan is what to do about the differences.
type instancePlan struct {
	news     []holdfast.Observation // facts to store: nothing was recorded since they were asked for
	adopt    []holdfast.Observation // that a restored database has lost
	confirm  []row                  // recorded as there, not on the list: the host is to be asked about each
	destroy  []doomed               // on the host, and not wanted for longer than the grace period
	tidy     []doomed               // output of incarnations that ended and were followed by another: certain, and nothing that runs
	total    int                    // instances on the host, for the guard
	unwanted sightings
}

// doomed is an instance to destroy, with the level that says so.
type doomed struct {
	ref        holdfast.InstanceRef
	generation int64
	desired    holdfast.Desired
}

// planInstances compares in both directions (contract: C4). A row that changed
// while the host was asked is left to the next run. Leftovers are ended apart.
func planInstances(c comparison) instancePlan {
	p := instancePlan{unwanted: sightings{}}
	listed := map[holdfast.InstanceID]bool{}
	for _, o := range c.observed {
		if o.State == holdfast.InstanceAbsent {
			continue // a tombstone of the host's
		}
		p.total++
		if c.lefts[holdfast.InstanceRef{Instance: o.Instance, Incarnation: o.Incarnation}] {
			continue // its end has a level of its own, which a higher one would make stale for ever
		}
		r, found := c.after[o.Instance]
		if adoptable(c.lineage, r, found, o) {
			p.adopt = append(p.adopt, o)
			listed[o.Instance] = true
			continue
		}
		if unwanted(r, found, o, c.host) {
			if o.State == holdfast.InstanceExited && o.Incarnation < r.incarnation {
				p.tidy = append(p.tidy, doom(o, r))
				continue
			}
			p.sight(c, o, r)
			continue
		}
		listed[o.Instance] = true
		before, was := c.before[o.Instance]
		if was && before.revision == r.revision && fold(r, o, asked, c.now).changed {
			p.news = append(p.news, o)
		}
	}
	for id, before := range c.before {
		if r, found := c.after[id]; found && r.revision == before.revision && !listed[id] && expected(r.state) {
			p.confirm = append(p.confirm, r)
		}
	}
	return p
}

// sight notes an unwanted instance, and dooms it once it has been that for long enough.
func (p *instancePlan) sight(c comparison, o holdfast.Observation, r row) {
	ref := holdfast.InstanceRef{Instance: o.Instance, Incarnation: o.Incarnation}
	since, known := c.unwanted[ref]
	if !known {
		since = c.now
	}
	p.unwanted[ref] = since
	if c.now.Sub(since) >= c.grace {
		p.destroy = append(p.destroy, doom(o, r))
	}
}

// doom is the level by which nothing is left of what a host has.
func doom(o holdfast.Observation, r row) doomed {
	return doomed{ref: holdfast.InstanceRef{Instance: o.Instance, Incarnation: o.Incarnation},
		generation: max(r.generation, o.Generation+1), desired: holdfast.DesiredAbsent}
}

// unwanted reports whether what a host has is not what the fleet wants there.
func unwanted(r row, found bool, o holdfast.Observation, host holdfast.HostID) bool {
	switch {
	case !found:
		return true
	case r.state == holdfast.InstancePlaced: // an attempt may be creating it (T26)
		return false
	case o.Incarnation > r.incarnation: // the fleet knows less than the host does (T52)
		return false
	case o.Incarnation < r.incarnation, r.host != host, r.state == holdfast.InstanceAbsent:
		return true
	}
	return r.state == holdfast.InstanceExited && o.State != holdfast.InstanceExited
}

// expected reports whether a host must know of an instance in that state: it said so once.
func expected(s holdfast.InstanceState) bool {
	return s != holdfast.InstancePlaced && !final(s)
}
