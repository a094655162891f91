package interleaving

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/holdfast-dev/holdfast"
)

// keeper is a host that keeps its levels as lifecycle.md says: lower generations
// are refused, equal ones joined, an incarnation boots once, what ended stays so,
// and an older incarnation is gone before a newer one begins.
type keeper struct {
	id    holdfast.HostID
	sched *scheduler
	deep  bool

	mu     sync.Mutex
	silent bool
	has    map[holdfast.InstanceRef]holdfast.Observation
	boots  map[holdfast.InstanceRef]int
	seen   []holdfast.Level // every level that arrived

	inside *inhabitants // of its boots; nil: nobody asks them anything
	copies map[holdfast.CheckpointID]holdfast.CheckpointObservation
	layers map[holdfast.InstanceRef][]holdfast.Layer // that boots are made of
}

func newKeeper(id holdfast.HostID, sched *scheduler, deep bool) *keeper {
	return &keeper{id: id, sched: sched, deep: deep, has: map[holdfast.InstanceRef]holdfast.Observation{}, boots: map[holdfast.InstanceRef]int{},
		copies: map[holdfast.CheckpointID]holdfast.CheckpointObservation{}, layers: map[holdfast.InstanceRef][]holdfast.Layer{}}
}

func (k *keeper) url() string { return "http://" + string(k.id) + ".sim" }

func (k *keeper) step(ctx context.Context, what string) error {
	if k.deep {
		k.sched.step(ctx, string(k.id)+" "+what)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.silent {
		return holdfast.E(holdfast.Unavailable, holdfast.ReasonUnreachable, "%s is silent", k.id)
	}
	return nil
}

// newest is the current incarnation of an instance, 0 for none; k.mu is held.
func (k *keeper) newest(id holdfast.InstanceID) (n int64) {
	for ref := range k.has {
		if ref.Instance == id {
			n = max(n, ref.Incarnation)
		}
	}
	return n
}

// EnsureInstance implements holdfast.HostService.
func (k *keeper) EnsureInstance(ctx context.Context, l holdfast.Level) (holdfast.Observation, error) {
	if err := k.step(ctx, "takes "+string(l.Desired)); err != nil {
		return holdfast.Observation{}, err
	}
	ref := holdfast.InstanceRef{Instance: l.Instance, Incarnation: l.Incarnation}
	k.mu.Lock()
	ran := k.has[ref].State == holdfast.InstanceRunning
	k.mu.Unlock()
	o, err := k.keep(ref, l)
	if err == nil && k.inside != nil {
		if ran {
			k.inside.stops(ref, l.Desired)
		}
		k.inside.begins(l)
	}
	return o, err
}

// keep does what a level says.
func (k *keeper) keep(ref holdfast.InstanceRef, l holdfast.Level) (holdfast.Observation, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.seen = append(k.seen, l)
	refuse := func(reason holdfast.Reason, seen int64) (holdfast.Observation, error) {
		return holdfast.Observation{}, holdfast.E(holdfast.FailedPrecondition, reason, "refused").With("seen", strconv.FormatInt(seen, 10))
	}
	n := k.newest(l.Instance)
	was, known := k.has[ref]
	switch {
	case l.Incarnation < n:
		return refuse(holdfast.ReasonStaleIncarnation, n)
	case known && l.Generation < was.Generation:
		return refuse(holdfast.ReasonStaleGeneration, was.Generation)
	case known && l.Generation == was.Generation && l.Desired != was.Desired:
		return refuse(holdfast.ReasonLevelConflict, was.Generation)
	}
	if !known {
		was = holdfast.Observation{Instance: l.Instance, Incarnation: l.Incarnation, Host: k.id, HostURL: k.url(), BootID: "boot", Life: "life"}
		for older, o := range k.has {
			if older.Instance == l.Instance {
				o.State, o.Desired = holdfast.InstanceAbsent, holdfast.DesiredAbsent
				k.has[older] = o
			}
		}
		if l.Desired == holdfast.DesiredRunning || l.Desired == holdfast.DesiredSuspended {
			k.boots[ref]++
		}
	}
	was.Generation, was.Desired = l.Generation, l.Desired
	ended := was.State == holdfast.InstanceExited || was.State == holdfast.InstanceAbsent
	if !ended || was.State == holdfast.InstanceExited && l.Desired == holdfast.DesiredAbsent {
		was.State = map[holdfast.Desired]holdfast.InstanceState{
			holdfast.DesiredRunning: holdfast.InstanceRunning, holdfast.DesiredSuspended: holdfast.InstanceSuspended,
			holdfast.DesiredExited: holdfast.InstanceExited, holdfast.DesiredAbsent: holdfast.InstanceAbsent}[l.Desired]
	}
	if l.Spec != nil {
		was.Owner = l.Spec.Owner
		k.layers[ref] = l.Spec.Layers
	}
	k.has[ref] = was
	return was, nil
}

// EnsureCheckpoint implements holdfast.HostService.
func (k *keeper) EnsureCheckpoint(ctx context.Context, l holdfast.CheckpointLevel) (holdfast.CheckpointObservation, error) {
	if err := k.step(ctx, "is told of a checkpoint"); err != nil {
		return holdfast.CheckpointObservation{}, err
	}
	if k.inside == nil {
		return holdfast.CheckpointObservation{}, holdfast.E(holdfast.FailedPrecondition, holdfast.ReasonNotCapable, "%s has no disk", k.id)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	ref := holdfast.InstanceRef{Instance: l.Instance, Incarnation: l.Incarnation}
	o, known := k.copies[l.Checkpoint]
	was, there := k.has[ref]
	switch {
	case l.Desired == holdfast.CheckpointAbsent:
		o = holdfast.CheckpointObservation{Checkpoint: l.Checkpoint, Instance: l.Instance, State: holdfast.CopyAbsent}
	case known:
		return o, nil
	case l.Incarnation < k.newest(l.Instance):
		return o, holdfast.E(holdfast.FailedPrecondition, holdfast.ReasonStaleIncarnation, "refused").With("seen", strconv.FormatInt(k.newest(l.Instance), 10))
	case l.Generation < was.Generation:
		return o, holdfast.E(holdfast.FailedPrecondition, holdfast.ReasonStaleGeneration, "refused").With("seen", strconv.FormatInt(was.Generation, 10))
	case !there || was.State != holdfast.InstanceRunning && was.State != holdfast.InstanceSuspended:
		o = holdfast.CheckpointObservation{Checkpoint: l.Checkpoint, Instance: l.Instance, State: holdfast.CopyFailed,
			Failure: &holdfast.Failure{Reason: holdfast.ReasonInstanceLost, Message: "there is no disk any more"}}
	default:
		key := fmt.Sprintf("checkpoints/%s/%d", l.Checkpoint, l.Claim)
		info, err := k.inside.world.work.Put(ctx, key, strings.NewReader("the disk of "+string(l.Instance)+" for "+key))
		if err != nil {
			return o, err
		}
		o = holdfast.CheckpointObservation{Checkpoint: l.Checkpoint, Instance: l.Instance, State: holdfast.CopyPresent, Claim: l.Claim, Added: info.Size,
			Layers: append(slices.Clone(k.layers[ref]), holdfast.Layer{Key: key, Size: info.Size, SHA256: info.SHA256})}
	}
	k.copies[l.Checkpoint] = o
	return o, nil
}

// GetInstance implements holdfast.HostService.
func (k *keeper) GetInstance(ctx context.Context, id holdfast.InstanceID) (holdfast.Observation, error) {
	if err := k.step(ctx, "is asked"); err != nil {
		return holdfast.Observation{}, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	o, ok := k.has[holdfast.InstanceRef{Instance: id, Incarnation: k.newest(id)}]
	if !ok {
		return o, holdfast.E(holdfast.NotFound, holdfast.ReasonUnknown, "%s knows no %s", k.id, id)
	}
	return o, nil
}

// ListInstances implements holdfast.HostService.
func (k *keeper) ListInstances(ctx context.Context) ([]holdfast.Observation, error) {
	if err := k.step(ctx, "is asked for all"); err != nil {
		return nil, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	var list []holdfast.Observation
	for ref, o := range k.has {
		if ref.Incarnation == k.newest(ref.Instance) && o.State != holdfast.InstanceAbsent {
			list = append(list, o)
		}
	}
	slices.SortFunc(list, func(a, b holdfast.Observation) int { return compare(string(a.Instance), string(b.Instance)) })
	return list, nil
}

func compare(a, b string) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// Identity implements holdfast.HostService.
func (k *keeper) Identity(context.Context) (holdfast.HostIdentity, error) {
	return holdfast.HostIdentity{Host: k.id, Life: "life"}, nil
}

// Audit implements holdfast.HostService.
func (k *keeper) Audit(context.Context) (holdfast.PartyAudit, error) {
	return holdfast.PartyAudit{}, nil
}

// hush makes the host silent, or lets it be heard.
func (k *keeper) hush(silent bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.silent = silent
}

// end is the instance's newest incarnation ending by itself; it returns what the host says then.
func (k *keeper) end(id holdfast.InstanceID) (holdfast.Observation, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	ref := holdfast.InstanceRef{Instance: id, Incarnation: k.newest(id)}
	o, ok := k.has[ref]
	if !ok || o.State == holdfast.InstanceExited || o.State == holdfast.InstanceAbsent {
		return o, false
	}
	o.State, o.Failure = holdfast.InstanceExited, &holdfast.Failure{Reason: holdfast.ReasonExited, Message: "it ended by itself"}
	k.has[ref] = o
	return o, true
}

// living are the boots that live here.
func (k *keeper) living() (refs []holdfast.InstanceRef) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for ref, o := range k.has {
		if o.State == holdfast.InstanceRunning || o.State == holdfast.InstanceSuspended {
			refs = append(refs, ref)
		}
	}
	return refs
}

// bootedTwice says which boot the host began more than once.
func (k *keeper) bootedTwice() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, ref := range slices.SortedFunc(maps.Keys(k.boots), func(a, b holdfast.InstanceRef) int { return compare(fmt.Sprint(a), fmt.Sprint(b)) }) {
		if n := k.boots[ref]; n > 1 {
			return fmt.Errorf("incarnation %d was booted %d times on %s", ref.Incarnation, n, k.id)
		}
	}
	return nil
}
