package fleet

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/reconcile"
	"github.com/holdfast-dev/holdfast/store"
)

// SetHostDuty implements holdfast.OperatorService. What is placed at the same
// time is placed before it, or not there: both write the host's row. A retired
// host's instances are ended before it returns, or by the sweep.
func (s *Service) SetHostDuty(ctx context.Context, in holdfast.SetHostDuty) (holdfast.Host, error) {
	if err := in.Validate(); err != nil {
		return holdfast.Host{}, err
	}
	var before, after hostRow
	err := s.db.Update(ctx, func(tx store.Tx) (err error) {
		before, after, err = setDuty(ctx, tx, in)
		return err
	})
	if err != nil {
		return holdfast.Host{}, storage("set the duty of "+string(in.Host), err)
	}
	if before.Duty != after.Duty {
		s.log.LogAttrs(ctx, slog.LevelWarn, "host duty changed", slog.String("host", string(in.Host)),
			slog.String("from", string(before.Duty)), slog.String("to", string(after.Duty)), slog.String("reason", in.Reason))
	}
	if in.Duty != holdfast.HostRetired {
		return after.Host, nil
	}
	// What this leaves undone, the sweep does: the word is recorded.
	if err := s.giveUpInstances(ctx, after); err != nil {
		return holdfast.Host{}, storage("end the instances of "+string(in.Host), err)
	}
	err = s.db.View(ctx, func(tx store.Tx) (err error) {
		after, _, err = getHost(ctx, tx, in.Host, "")
		return err
	})
	if err != nil {
		return holdfast.Host{}, storage("read host "+string(in.Host), err)
	}
	return after.Host, nil
}

func setDuty(ctx context.Context, tx store.Tx, in holdfast.SetHostDuty) (before, after hostRow, err error) {
	before, found, err := getHost(ctx, tx, in.Host, tx.ForUpdate())
	if err != nil {
		return before, after, err
	}
	if !found {
		return before, after, holdfast.E(holdfast.NotFound, holdfast.ReasonUnknown, "there is no host %s", in.Host).On(string(in.Host))
	}
	now, err := tx.Now(ctx)
	if err != nil {
		return before, after, fmt.Errorf("read the clock: %w", err)
	}
	after, changed, err := judgeDuty(before, in, now)
	if err != nil || !changed {
		return before, after, err
	}
	_, err = tx.ExecContext(ctx, `UPDATE host SET duty = $2, duty_reason = $3, duty_at = $4, health = $5, health_at = $6, gone_at = $7 WHERE id = $1`,
		string(in.Host), string(after.Duty), after.DutyReason, store.Micros(after.DutyAt), string(after.Health),
		store.Micros(after.healthAt), store.Micros(after.GoneAt))
	if err != nil {
		return before, after, fmt.Errorf("set the duty: %w", err)
	}
	if after.Duty == holdfast.HostDraining {
		emptied, err := cordonWhenEmpty(ctx, tx, in.Host, now)
		if err != nil {
			return before, after, err
		}
		if emptied {
			after.Duty = holdfast.HostCordoned
		}
	}
	return before, after, nil
}

// judgeDuty decides on the operators' word. It is pure.
func judgeDuty(h hostRow, in holdfast.SetHostDuty, now time.Time) (next hostRow, changed bool, err error) {
	next = h
	if h.Duty == in.Duty {
		next.DutyReason = orElse(in.Reason, h.DutyReason)
		return next, next.DutyReason != h.DutyReason, nil
	}
	if !slices.Contains(holdfast.HostDutyTransitions()[h.Duty], in.Duty) {
		return h, false, holdfast.E(holdfast.FailedPrecondition, holdfast.ReasonState,
			"host %s is %s, for ever: start its machine with an empty data directory, and it is a new host", h.ID, h.Duty).
			On(string(h.ID)).With("duty", string(h.Duty))
	}
	if in.Duty == holdfast.HostRetired && !in.Force && h.Health == holdfast.HostReady && h.Used.Instances > 0 {
		return h, false, holdfast.E(holdfast.FailedPrecondition, holdfast.ReasonState,
			"host %s answers and has %d instances, which its retirement ends: drain it first, or force it", h.ID, h.Used.Instances).
			On(string(h.ID)).With("instances", fmt.Sprint(h.Used.Instances))
	}
	next.Duty, next.DutyReason, next.DutyAt = in.Duty, in.Reason, now
	if in.Duty == holdfast.HostRetired {
		// Should it be heard again, it first ends what it still has, as any lost one.
		next.GoneAt = now
		if h.Health != holdfast.HostLost {
			next.Health, next.healthAt = holdfast.HostLost, now
		}
	}
	return next, true, nil
}

func orElse(text, otherwise string) string {
	if text == "" {
		return otherwise
	}
	return text
}

// cordonWhenEmpty ends a draining of which nothing is left: no instance that
// lives, no output that is kept, no superseded incarnation. Nothing new can come:
// a placement needs the duty ACTIVE, and writes the same row.
func cordonWhenEmpty(ctx context.Context, tx store.Tx, host holdfast.HostID, now time.Time) (bool, error) {
	n, err := affected(tx.ExecContext(ctx, `UPDATE host SET duty = 'CORDONED', duty_at = $2 WHERE id = $1 AND duty = 'DRAINING'
		AND NOT EXISTS (SELECT 1 FROM instance i WHERE i.host = host.id AND i.state <> 'ABSENT')
		AND NOT EXISTS (SELECT 1 FROM leftover l WHERE l.host = host.id)`, string(host), store.Micros(now)))
	if err != nil {
		return false, fmt.Errorf("cordon %s, which is drained: %w", host, err)
	}
	return n == 1, nil
}

func (s *Service) pageDraining(ctx context.Context, after string, limit int) ([]reconcile.Item, string, error) {
	return s.hostItems(ctx, limit, `WHERE id > $1 AND duty = 'DRAINING'`, func(time.Time) []any { return []any{after, limit} }, s.drained)
}

// drained looks whether a draining host is empty by now. What has to move is
// moved by the orchestrator, which sees the duty with each instance.
func (s *Service) drained(ctx context.Context, h hostRow) error {
	var empty bool
	err := s.db.Update(ctx, func(tx store.Tx) error {
		now, err := tx.Now(ctx)
		if err != nil {
			return fmt.Errorf("read the clock: %w", err)
		}
		empty, err = cordonWhenEmpty(ctx, tx, h.ID, now)
		return err
	})
	if err == nil && !empty {
		err = reconcile.ErrSkipped
	}
	if err == nil {
		s.log.LogAttrs(ctx, slog.LevelInfo, "host is drained", slog.String("host", string(h.ID)))
	}
	return err
}

// FindInstances implements holdfast.OperatorService. It asks no host.
func (s *Service) FindInstances(ctx context.Context, in holdfast.FindInstances) (holdfast.InstancePage, error) {
	if err := in.Validate(); err != nil {
		return holdfast.InstancePage{}, err
	}
	if in.Limit == 0 {
		in.Limit = defaultPage
	}
	where, args := `WHERE id > $1 AND state <> 'ABSENT'`, []any{string(in.After), in.Limit + 1}
	if in.Unreachable {
		where += ` AND state = 'UNKNOWN'`
	}
	if in.Host != "" {
		where += ` AND host = $3`
		args = append(args, string(in.Host))
	}
	var rows []row
	err := s.db.View(ctx, func(tx store.Tx) error {
		if in.Host != "" {
			if _, found, err := getHost(ctx, tx, in.Host, ""); err != nil || !found {
				unknown := holdfast.E(holdfast.NotFound, holdfast.ReasonUnknown, "there is no host %s", in.Host).On(string(in.Host))
				return errors.Join(err, unknown)
			}
		}
		var err error
		rows, err = queryInstances(ctx, tx, where+` ORDER BY id LIMIT $2`, args...)
		return err
	})
	if err != nil {
		return holdfast.InstancePage{}, storage("find instances", err)
	}
	return pageOf(rows, in.Limit), nil
}
