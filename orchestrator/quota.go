package orchestrator

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"strconv"
	"strings"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/store"
)

// quotaShards is in how many parts a project's quotas are split: as many of its
// creates can commit at once (adr/0006-quotas-in-shards.md).
const quotaShards = 32

// errShardFull says that a sandbox's shard has no room of its own for it; the
// other shards may.
var errShardFull = errors.New("the quota's shard is full")

// closed is the cap of every shard of a quota that is exceeded: nothing fits.
const closed int64 = -1

// shard is one part of a project's quotas. While a quota is not exceeded its
// caps add up to it, and no shard holds more than its cap; so what all hold never
// adds up to more, and a create need look at its own shard alone.
type shard struct {
	number   int64 // from 1 on
	held     holdfast.Usage
	caps     holdfast.Quotas
	recorded bool // as it is here
}

// shardOf spreads sandboxes over the shards.
func shardOf(id holdfast.SandboxID) int64 {
	h := fnv.New32a()
	_, _ = h.Write([]byte(id)) // never fails
	return int64(h.Sum32()%quotaShards) + 1
}

// holds reports whether a sandbox in that state has resources: a failed one gave
// them back at once (contract: A11), and one that is DELETING has them until its
// host confirms the end.
func holds(state holdfast.SandboxState) bool {
	return state != holdfast.SandboxFailed && state != holdfast.SandboxDeleted
}

// wants is what a sandbox holds.
func (r row) wants() holdfast.Usage {
	return holdfast.Usage{Sandboxes: 1, CPUMillis: r.Resources.CPUMillis, MemoryBytes: r.Resources.MemoryBytes}
}

// take counts a new sandbox in its shard, or returns errShardFull: one statement,
// which locks that shard alone.
func (r row) take(ctx context.Context, tx store.Tx) error {
	w := r.wants()
	res, err := tx.ExecContext(ctx, `UPDATE quota_shard SET sandboxes = sandboxes + 1, cpu_millis = cpu_millis + $3, memory_bytes = memory_bytes + $4
		WHERE project = $1 AND shard = $2 AND sandboxes < sandboxes_cap AND cpu_millis_cap - cpu_millis >= $3 AND memory_bytes_cap - memory_bytes >= $4`,
		string(r.Project), r.Shard, w.CPUMillis, w.MemoryBytes)
	if err != nil {
		return fmt.Errorf("take from the quota: %w", err)
	}
	n, err := res.RowsAffected()
	if err == nil && n != 1 {
		err = errShardFull
	}
	return err
}

// takeFromAll counts a new sandbox although its shard is full, if the project's
// quotas allow it: the room of all shards is shared out anew. It runs in a
// transaction that has no shard yet, and locks them in one order (contract: D3).
func (r row) takeFromAll(ctx context.Context, tx store.Tx) error {
	shards, quotas, err := lockShards(ctx, tx, r.Project)
	if err != nil {
		return err
	}
	want := r.wants()
	if short := shortage(sum(shards), quotas, want); short != nil {
		return r.refusal(ctx, tx, *short)
	}
	return saveShards(ctx, tx, r.Project, share(shards, quotas, r.Shard, want))
}

// uncount takes a sandbox that holds nothing any more out of its shard, and returns
// the shard to give back to; 0 for none. Its row says so in the same transaction:
// whoever comes second finds it uncounted.
func (r *row) uncount() (from int64) {
	if !holds(r.State) {
		from, r.Shard = r.Shard, 0
	}
	return from
}

// giveBack returns what a sandbox held to a shard, if to one.
func (r *row) giveBack(ctx context.Context, tx store.Tx, to int64) error {
	if to == 0 {
		return nil
	}
	w := r.wants()
	_, err := tx.ExecContext(ctx, `UPDATE quota_shard SET sandboxes = sandboxes - 1, cpu_millis = cpu_millis - $3, memory_bytes = memory_bytes - $4
		WHERE project = $1 AND shard = $2`, string(r.Project), to, w.CPUMillis, w.MemoryBytes)
	if err != nil {
		return fmt.Errorf("give back to the quota: %w", err)
	}
	return nil
}

// lacking is a quota that has no room.
type lacking struct {
	quota             string
	limit, held, asks int64
}

// quantities is each quota by its field's name.
func quantities(limit holdfast.Quotas, held, want holdfast.Usage) []lacking {
	return []lacking{
		{"sandboxes", limit.Sandboxes, held.Sandboxes, want.Sandboxes},
		{"cpu_millis", limit.CPUMillis, held.CPUMillis, want.CPUMillis},
		{"memory_bytes", limit.MemoryBytes, held.MemoryBytes, want.MemoryBytes},
	}
}

// shortage is the first quota that has no room for what is wanted, or nil.
func shortage(held holdfast.Usage, quotas holdfast.Quotas, want holdfast.Usage) *lacking {
	for _, q := range quantities(quotas, held, want) {
		if q.limit != holdfast.NoLimit && q.held+q.asks > q.limit {
			return &q
		}
	}
	return nil
}

// refusal is the error of a create that a quota forbids; nothing of it is
// recorded (contract: A8). What is DELETING is named, since it is counted and
// about to be given back.
func (r row) refusal(ctx context.Context, tx store.Tx, short lacking) error {
	var deleting int64
	err := tx.QueryRowContext(ctx, `SELECT COUNT(*) FROM sandbox WHERE project = $1 AND quota_shard > 0 AND state = 'DELETING'`,
		string(r.Project)).Scan(&deleting)
	if err != nil {
		return fmt.Errorf("count what is being deleted: %w", err)
	}
	e := holdfast.E(holdfast.ResourceExhausted, holdfast.ReasonQuota, "the quota of %s is %d: %d held, and this asks for %d",
		short.quota, short.limit, short.held, short.asks)
	if deleting > 0 {
		e.Message += fmt.Sprintf("; %d sandboxes are DELETING, and give theirs back when that is done", deleting)
	}
	number := func(n int64) string { return strconv.FormatInt(n, 10) }
	return e.On(string(r.Project)).With("quota", short.quota).With("limit", number(short.limit)).With("used", number(short.held)).
		With("asked", number(short.asks)).With("deleting", number(deleting))
}

func sum(shards []shard) holdfast.Usage {
	var all holdfast.Usage
	for _, s := range shards {
		all.Sandboxes += s.held.Sandboxes
		all.CPUMillis += s.held.CPUMillis
		all.MemoryBytes += s.held.MemoryBytes
	}
	return all
}

// share gives want to the shard own and deals the room that the quotas leave out
// anew, in portions of what sandboxes usually want, from own on. It is pure.
func share(shards []shard, quotas holdfast.Quotas, own int64, want holdfast.Usage) []shard {
	out := make([]shard, len(shards))
	for i, s := range shards {
		if s.number == own {
			s.held.Sandboxes += want.Sandboxes
			s.held.CPUMillis += want.CPUMillis
			s.held.MemoryBytes += want.MemoryBytes
		}
		out[i] = s
	}
	for _, d := range []struct {
		limit, portion int64
		held, caps     func(*shard) *int64
	}{
		{quotas.Sandboxes, 1,
			func(s *shard) *int64 { return &s.held.Sandboxes }, func(s *shard) *int64 { return &s.caps.Sandboxes }},
		{quotas.CPUMillis, orDefault(want.CPUMillis, holdfast.DefaultCPUMillis),
			func(s *shard) *int64 { return &s.held.CPUMillis }, func(s *shard) *int64 { return &s.caps.CPUMillis }},
		{quotas.MemoryBytes, orDefault(want.MemoryBytes, holdfast.DefaultMemoryBytes),
			func(s *shard) *int64 { return &s.held.MemoryBytes }, func(s *shard) *int64 { return &s.caps.MemoryBytes }},
	} {
		held := make([]int64, len(out))
		for i := range out {
			held[i] = *d.held(&out[i])
		}
		for i, limit := range deal(held, d.limit, d.portion, max(0, int(own)-1)) {
			*d.caps(&out[i]) = limit
		}
	}
	for i := range out {
		out[i].recorded = shards[i].recorded && out[i] == shards[i]
	}
	return out
}

func orDefault(n, otherwise int64) int64 {
	if n == 0 {
		return otherwise
	}
	return n
}

// deal returns each shard's cap of one quota, beginning with the shard at an index.
func deal(held []int64, limit, portion int64, from int) []int64 {
	caps := make([]int64, len(held))
	spare := limit
	for _, h := range held {
		spare -= h
	}
	portions, n := spare/portion, int64(len(held))
	for i := range caps {
		switch at := int64((from + i) % len(caps)); {
		case limit == holdfast.NoLimit:
			caps[at] = holdfast.MaxQuota
		case spare < 0:
			caps[at] = closed
		default:
			caps[at] = held[at] + portions/n*portion
			if int64(i) < portions%n {
				caps[at] += portion
			}
			if int64(i) == portions%n {
				caps[at] += spare % portion
			}
		}
	}
	return caps
}

// newShards are those of a project that holds nothing.
func newShards(quotas holdfast.Quotas) []shard {
	shards := make([]shard, quotaShards)
	for i := range shards {
		shards[i].number = int64(i) + 1
	}
	return share(shards, quotas, 0, holdfast.Usage{})
}

// lockShards reads a project's shards and quotas for a decision about all of
// them. The quotas are read when the shards are locked: whoever changes the
// quotas locks the shards first.
func lockShards(ctx context.Context, tx store.Tx, id holdfast.ProjectID) (shards []shard, quotas holdfast.Quotas, err error) {
	rs, err := tx.QueryContext(ctx, `SELECT shard, sandboxes, cpu_millis, memory_bytes, sandboxes_cap, cpu_millis_cap, memory_bytes_cap
		FROM quota_shard WHERE project = $1 ORDER BY shard`+tx.ForUpdate(), string(id))
	if err != nil {
		return nil, quotas, fmt.Errorf("read quotas: %w", err)
	}
	defer func() { err = errors.Join(err, rs.Close()) }()
	for rs.Next() {
		s := shard{recorded: true}
		if err := rs.Scan(&s.number, &s.held.Sandboxes, &s.held.CPUMillis, &s.held.MemoryBytes,
			&s.caps.Sandboxes, &s.caps.CPUMillis, &s.caps.MemoryBytes); err != nil {
			return nil, quotas, fmt.Errorf("read quotas: %w", err)
		}
		shards = append(shards, s)
	}
	if err := rs.Err(); err != nil {
		return nil, quotas, fmt.Errorf("read quotas: %w", err)
	}
	if len(shards) == 0 {
		return nil, quotas, noProject(string(id))
	}
	err = tx.QueryRowContext(ctx, `SELECT sandboxes, cpu_millis, memory_bytes FROM project WHERE id = $1`, string(id)).
		Scan(&quotas.Sandboxes, &quotas.CPUMillis, &quotas.MemoryBytes)
	if err != nil {
		return nil, quotas, fmt.Errorf("read quotas of %s: %w", id, err)
	}
	return shards, quotas, nil
}

// saveShards writes those that are not recorded as they are, in one statement.
func saveShards(ctx context.Context, tx store.Tx, id holdfast.ProjectID, shards []shard) error {
	args := []any{string(id)}
	var values []string
	for _, s := range shards {
		if s.recorded {
			continue
		}
		n := len(args)
		values = append(values, fmt.Sprintf("($1, $%d, $%d, $%d, $%d, $%d, $%d, $%d)", n+1, n+2, n+3, n+4, n+5, n+6, n+7))
		args = append(args, s.number, s.held.Sandboxes, s.held.CPUMillis, s.held.MemoryBytes, s.caps.Sandboxes, s.caps.CPUMillis, s.caps.MemoryBytes)
	}
	if len(values) == 0 {
		return nil
	}
	_, err := tx.ExecContext(ctx, `INSERT INTO quota_shard (project, shard, sandboxes, cpu_millis, memory_bytes, sandboxes_cap, cpu_millis_cap, memory_bytes_cap)
		VALUES `+strings.Join(values, ", ")+` ON CONFLICT (project, shard) DO UPDATE SET sandboxes = excluded.sandboxes,
		cpu_millis = excluded.cpu_millis, memory_bytes = excluded.memory_bytes, sandboxes_cap = excluded.sandboxes_cap,
		cpu_millis_cap = excluded.cpu_millis_cap, memory_bytes_cap = excluded.memory_bytes_cap`, args...)
	if err != nil {
		return fmt.Errorf("save quotas of %s: %w", id, err)
	}
	return nil
}
