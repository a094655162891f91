package fleet

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/store"
)

// leftover is what a superseded incarnation still holds (T38).
type leftover struct {
	ref        holdfast.InstanceRef
	generation int64 // of the level that superseded it
	host       holdfast.HostID
	hostURL    string
	placedAt   time.Time
	wait       time.Duration // for its end
}

// insertLeftover keeps the reservation of an incarnation that another replaces.
func insertLeftover(ctx context.Context, tx store.Tx, r row, generation int64, now time.Time) error {
	_, err := tx.ExecContext(ctx, `INSERT INTO leftover (instance, incarnation, generation, host, cpu_millis, memory_bytes, placed_at, since)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8)`, string(r.id), r.incarnation, generation, string(r.host), r.cpu, r.memory,
		store.Micros(r.placedAt), store.Micros(now))
	if err != nil {
		return fmt.Errorf("keep what incarnation %d of %s holds: %w", r.incarnation, r.id, err)
	}
	return nil
}

// endLeftover gives back what a superseded incarnation held, once, if its host
// says that it ended; else it returns otherwise.
func endLeftover(ctx context.Context, tx store.Tx, seen holdfast.Observation, otherwise string) (string, error) {
	if !final(seen.State) {
		return otherwise, nil
	}
	freed, err := freeLeftover(ctx, tx, holdfast.InstanceRef{Instance: seen.Instance, Incarnation: seen.Incarnation}, seen.Host)
	if err != nil || !freed {
		return otherwise, err
	}
	return "applied: a superseded incarnation ended", nil
}

// freeLeftover is exactly once: who deletes the row gives back.
func freeLeftover(ctx context.Context, tx store.Tx, ref holdfast.InstanceRef, host holdfast.HostID) (bool, error) {
	rows, err := tx.QueryContext(ctx, `DELETE FROM leftover WHERE instance = $1 AND incarnation = $2 AND host = $3
		RETURNING cpu_millis, memory_bytes`, string(ref.Instance), ref.Incarnation, string(host))
	if err != nil {
		return false, fmt.Errorf("end the leftover %s/%d: %w", ref.Instance, ref.Incarnation, err)
	}
	var cpu, memory int64
	freed := rows.Next()
	if freed {
		err = rows.Scan(&cpu, &memory)
	}
	if err := errors.Join(err, rows.Err(), rows.Close()); err != nil {
		return false, fmt.Errorf("end the leftover %s/%d: %w", ref.Instance, ref.Incarnation, err)
	}
	if !freed {
		return false, nil
	}
	return true, giveBack(ctx, tx, host, cpu, memory)
}

func queryLeftovers(ctx context.Context, tx store.Tx, host holdfast.HostID) ([]leftover, error) {
	return leftoversWhere(ctx, tx, `host = $1`, string(host))
}

func leftoversWhere(ctx context.Context, tx store.Tx, where string, args ...any) (out []leftover, err error) {
	rows, err := tx.QueryContext(ctx, `SELECT instance, incarnation, generation, host,
		COALESCE((SELECT h.url FROM host h WHERE h.id = leftover.host), ''), placed_at
		FROM leftover WHERE `+where+` ORDER BY instance, incarnation`, args...)
	if err != nil {
		return nil, fmt.Errorf("read leftovers: %w", err)
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		var l leftover
		var placed int64
		if err := rows.Scan(&l.ref.Instance, &l.ref.Incarnation, &l.generation, &l.host, &l.hostURL, &placed); err != nil {
			return nil, fmt.Errorf("read leftovers: %w", err)
		}
		l.placedAt = store.FromMicros(placed)
		out = append(out, l)
	}
	return out, rows.Err()
}

// endFirst ends the incarnation that another replaces before that one begins, as
// far as its host does so at once; otherwise the sweep does. One host for both
// orders them itself.
func (s *Service) endFirst(ctx context.Context, r ruling) {
	if r.left == nil || r.left.hostHealth != holdfast.HostReady || r.left.host == r.next.host {
		return
	}
	err := s.clearLeftover(ctx, leftover{
		ref: holdfast.InstanceRef{Instance: r.left.id, Incarnation: r.left.incarnation}, generation: r.next.generation,
		host: r.left.host, hostURL: r.left.hostURL, placedAt: r.left.placedAt, wait: endWait,
	})
	if err != nil {
		s.log.LogAttrs(ctx, slog.LevelInfo, "a superseded incarnation is not ended yet; the sweep goes on", slog.String("instance", string(r.left.id)),
			slog.String("host", string(r.left.host)), slog.Any("error", err))
	}
}

// endEarlier ends the superseded boots of an instance that ended. As long as a host
// that is heard has one, the end is not true: it is not answered, and asked again. A
// host that is silent gets rid of its own when it returns.
func (s *Service) endEarlier(ctx context.Context, id holdfast.InstanceID) error {
	for tried := false; ; tried = true {
		var lefts []leftover
		err := s.view(ctx, func(tx store.Tx, _ time.Time) (err error) {
			lefts, err = leftoversWhere(ctx, tx, `instance = $1 AND EXISTS (SELECT 1 FROM host h WHERE h.id = leftover.host AND h.health = $2)`,
				string(id), string(holdfast.HostReady))
			return err
		})
		if err != nil {
			return storage("read earlier boots", err)
		}
		if len(lefts) == 0 {
			return nil
		}
		if tried {
			return holdfast.E(holdfast.Unavailable, holdfast.ReasonHostUnreachable, "host %s has not ended incarnation %d yet",
				lefts[0].host, lefts[0].ref.Incarnation).On(string(id)).With("host", string(lefts[0].host))
		}
		for _, l := range lefts {
			l.wait = endWait
			if err := s.clearLeftover(ctx, l); err != nil {
				return err
			}
		}
	}
}

// endWait is how long a new incarnation waits for the old one's end.
const endWait = 3 * time.Second

// clearLeftover ends a superseded incarnation on its host. That is no orphan to
// wait for: the orchestrator raised the incarnation.
func (s *Service) clearLeftover(ctx context.Context, l leftover) error {
	ctx, cancel := context.WithTimeout(ctx, s.limits.CallTimeout)
	defer cancel()
	seen, err := s.order(ctx, l.hostURL, holdfast.Level{Instance: l.ref.Instance, Incarnation: l.ref.Incarnation, Generation: l.generation,
		Desired: holdfast.DesiredAbsent, PlacedAt: l.placedAt, Wait: l.wait})
	switch {
	case holdfast.ReasonOf(err) == holdfast.ReasonStaleIncarnation:
		// The host has a newer one, and takes none before the older is gone.
	case err != nil:
		return fmt.Errorf("end %s/%d: %w", l.ref.Instance, l.ref.Incarnation, err)
	case seen.Host != "" && seen.Host != l.host, !final(seen.State), seen.Incarnation != l.ref.Incarnation:
		return nil // not yet, or not its word
	}
	err = s.db.Update(ctx, func(tx store.Tx) error {
		_, err := freeLeftover(ctx, tx, l.ref, l.host)
		return err
	})
	if err != nil {
		return storage("end a leftover", err)
	}
	return nil
}
