package fleet

import (
	"context"
	"fmt"
	"hash/fnv"
	"slices"
	"strconv"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/store"
)

// choose picks a host among those with room: one that holds the image, where
// there is one that is not nearly full; and of two that the instance's id points
// at, the emptier. Replicas that place at once thus meet on few rows, and a
// simulation gets the same answer again.
func choose(hosts []*hostRow, r row) *hostRow {
	among := near(hosts, r)
	a := among[pick(string(r.id)+"/a", len(among))]
	b := among[pick(string(r.id)+"/b", len(among))]
	if load(b.Host) < load(a.Host) {
		return b
	}
	return a
}

// nearlyFull is the load from which a host's images are no longer a reason to
// prefer it: a few images must not pile everything on few hosts.
const nearlyFull = 0.8

// near are the hosts that hold the image, or all of them where none of those is a
// good choice. Preparing an image takes minutes, and disk.
func near(hosts []*hostRow, r row) []*hostRow {
	var with []*hostRow
	for _, h := range hosts {
		if r.spec != nil && slices.Contains(h.Images, r.spec.Image) && load(h.Host) < nearlyFull {
			with = append(with, h)
		}
	}
	if len(with) > 0 {
		return with
	}
	return hosts
}

func pick(key string, n int) int {
	h := fnv.New64a()
	_, _ = h.Write([]byte(key)) // a hash never fails
	return int(h.Sum64() % uint64(n))
}

// load is how full a host is in whatever it has least of, 0 to 1.
func load(h holdfast.Host) float64 {
	part := func(used, of int64) float64 {
		if of <= 0 {
			return 1
		}
		return float64(used) / float64(of)
	}
	return max(part(h.Used.CPUMillis, h.Capacity.CPUMillis), part(h.Used.MemoryBytes, h.Capacity.MemoryBytes),
		part(h.Used.Instances, h.Capacity.Instances))
}

const hasRoom = `health = 'READY' AND duty = 'ACTIVE' AND used_cpu_millis + $1 <= cpu_millis
	AND used_memory_bytes + $2 <= memory_bytes AND used_instances + 1 <= instances`

// placeRounds bounds how often every host that had room may turn out full.
const placeRounds = 3

// place reserves room for next on a host and sets it. The reservation is a
// conditional write on the host's row, so that no two placements share the last
// room (T53); a host that filled up in between is passed over, since others may
// have room still.
func place(ctx context.Context, tx store.Tx, next *row) error {
	for range placeRounds {
		hosts, err := withRoom(ctx, tx, *next)
		if err != nil {
			return err
		}
		if len(hosts) == 0 {
			break
		}
		for len(hosts) > 0 {
			one := choose(hosts, *next)
			next.placeOn(*one)
			done, err := reserve(ctx, tx, *next)
			if err != nil || done {
				return err
			}
			hosts = slices.DeleteFunc(hosts, func(h *hostRow) bool { return h == one })
		}
	}
	return noCapacity(ctx, tx, *next)
}

// insertPlaced is place for an instance without a row, in fewer statements: the
// roster says which hosts are likely to have room, and the conditional write
// decides. It reports false when another transaction recorded the instance first.
func insertPlaced(ctx context.Context, tx store.Tx, next *row, hosts []*hostRow) (bool, error) {
	if len(hosts) == 0 {
		var err error
		if hosts, err = withRoom(ctx, tx, *next); err != nil {
			return false, err
		}
	}
	if len(hosts) == 0 {
		return false, noCapacity(ctx, tx, *next)
	}
	next.placeOn(*choose(hosts, *next))
	if done, err := insertInstance(ctx, tx, *next); err != nil || !done {
		return false, err
	}
	if done, err := reserve(ctx, tx, *next); err != nil || done {
		return done, err
	}
	if err := place(ctx, tx, next); err != nil {
		return false, err
	}
	return true, updateInstance(ctx, tx, next)
}

// roomy is hasRoom over hosts read a moment ago. They are shared: nobody writes to one.
func roomy(hosts []hostRow, r row) []*hostRow {
	out := make([]*hostRow, 0, len(hosts))
	for i := range hosts {
		h := &hosts[i]
		if h.Health == holdfast.HostReady && h.Duty == holdfast.HostActive &&
			h.Used.CPUMillis+r.cpu <= h.Capacity.CPUMillis &&
			h.Used.MemoryBytes+r.memory <= h.Capacity.MemoryBytes && h.Used.Instances+1 <= h.Capacity.Instances {
			out = append(out, h)
		}
	}
	return out
}

func (r *row) placeOn(h hostRow) {
	r.host, r.held, r.hostURL, r.hostHealth, r.hostDuty, r.hostGone = h.ID, true, h.URL, h.Health, h.Duty, false
}

func withRoom(ctx context.Context, tx store.Tx, r row) ([]*hostRow, error) {
	hosts, err := queryHosts(ctx, tx, `WHERE `+hasRoom+` ORDER BY id`, r.cpu, r.memory)
	out := make([]*hostRow, len(hosts))
	for i := range hosts {
		out[i] = &hosts[i]
	}
	return out, err
}

func reserve(ctx context.Context, tx store.Tx, r row) (bool, error) {
	n, err := affected(tx.ExecContext(ctx, `UPDATE host SET used_cpu_millis = used_cpu_millis + $1,
		used_memory_bytes = used_memory_bytes + $2, used_instances = used_instances + 1
		WHERE id = $3 AND `+hasRoom, r.cpu, r.memory, string(r.host)))
	if err != nil {
		return false, fmt.Errorf("reserve room on %s: %w", r.host, err)
	}
	return n == 1, nil
}

// giveBack is called once for each reservation: where held was true, or a
// leftover's row was deleted, in the same transaction.
func giveBack(ctx context.Context, tx store.Tx, host holdfast.HostID, cpu, memory int64) error {
	_, err := tx.ExecContext(ctx, `UPDATE host SET used_cpu_millis = used_cpu_millis - $1,
		used_memory_bytes = used_memory_bytes - $2, used_instances = used_instances - 1 WHERE id = $3`, cpu, memory, string(host))
	if err != nil {
		return fmt.Errorf("give room back to %s: %w", host, err)
	}
	return nil
}

// noCapacity says what was asked and what there is.
func noCapacity(ctx context.Context, tx store.Tx, r row) error {
	hosts, err := queryHosts(ctx, tx, `ORDER BY id`)
	if err != nil {
		return err
	}
	var free holdfast.Capacity
	accepting := 0
	for _, h := range hosts {
		if h.Health == holdfast.HostReady && h.Duty == holdfast.HostActive {
			accepting++
			free.CPUMillis = max(free.CPUMillis, h.Capacity.CPUMillis-h.Used.CPUMillis)
			free.MemoryBytes = max(free.MemoryBytes, h.Capacity.MemoryBytes-h.Used.MemoryBytes)
			free.Instances = max(free.Instances, h.Capacity.Instances-h.Used.Instances)
		}
	}
	return holdfast.E(holdfast.Unavailable, holdfast.ReasonNoCapacity,
		"no host has room: asked for %d CPU millis and %d MiB; %d of %d hosts accept work, the most that one has free is %d CPU millis, %d MiB, %d instances",
		r.cpu, r.memory>>20, accepting, len(hosts), free.CPUMillis, free.MemoryBytes>>20, free.Instances).
		On(string(r.id)).Retry(time.Second).
		With("asked_cpu_millis", strconv.FormatInt(r.cpu, 10)).With("asked_memory_bytes", strconv.FormatInt(r.memory, 10)).
		With("free_cpu_millis", strconv.FormatInt(free.CPUMillis, 10)).With("free_memory_bytes", strconv.FormatInt(free.MemoryBytes, 10)).
		With("free_instances", strconv.FormatInt(free.Instances, 10)).With("hosts_accepting", strconv.Itoa(accepting))
}
