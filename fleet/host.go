package fleet

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/store"
)

// hostRow is a host as the fleet has recorded it.
type hostRow struct {
	holdfast.Host
	healthAt time.Time
	// shadowed: another host, seen later, claims its URL. What answers there is
	// not this host, whatever it says (T27).
	shadowed bool
}

const selectHost = `SELECT id, name, url, runtime, boot_id, health, health_at, duty, duty_reason, duty_at, images,
	cpu_millis, memory_bytes, instances, used_cpu_millis, used_memory_bytes, used_instances, seen_at, gone_at, created_at,
	EXISTS (SELECT 1 FROM host o WHERE o.url = host.url AND o.id <> host.id AND o.seen_at > host.seen_at) FROM host `

func scanHost(scan func(...any) error) (hostRow, error) {
	var h hostRow
	var healthAt, dutyAt, seenAt, goneAt, createdAt int64
	var images string
	err := scan(&h.ID, &h.Name, &h.URL, &h.Runtime, &h.BootID, &h.Health, &healthAt, &h.Duty, &h.DutyReason, &dutyAt, &images,
		&h.Capacity.CPUMillis, &h.Capacity.MemoryBytes, &h.Capacity.Instances,
		&h.Used.CPUMillis, &h.Used.MemoryBytes, &h.Used.Instances, &seenAt, &goneAt, &createdAt, &h.shadowed)
	h.healthAt, h.DutyAt, h.SeenAt = store.FromMicros(healthAt), store.FromMicros(dutyAt), store.FromMicros(seenAt)
	h.GoneAt, h.CreatedAt = store.FromMicros(goneAt), store.FromMicros(createdAt)
	return h, errors.Join(err, decode(images, &h.Images))
}

// getHost reads one host; lock is "" or the transaction's ForUpdate.
func getHost(ctx context.Context, tx store.Tx, id holdfast.HostID, lock string) (hostRow, bool, error) {
	hosts, err := queryHosts(ctx, tx, `WHERE id = $1`+lock, string(id))
	if err != nil || len(hosts) == 0 {
		return hostRow{}, false, err
	}
	return hosts[0], true, nil
}

func queryHosts(ctx context.Context, tx store.Tx, where string, args ...any) (out []hostRow, err error) {
	rows, err := tx.QueryContext(ctx, selectHost+where, args...)
	if err != nil {
		return nil, fmt.Errorf("read hosts: %w", err)
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		h, err := scanHost(rows.Scan)
		if err != nil {
			return nil, fmt.Errorf("read hosts: %w", err)
		}
		out = append(out, h)
	}
	return out, rows.Err()
}

// ListHosts implements holdfast.FleetService: every host, by id.
func (s *Service) ListHosts(ctx context.Context) ([]holdfast.Host, error) {
	var rows []hostRow
	err := s.db.View(ctx, func(tx store.Tx) (err error) {
		rows, err = queryHosts(ctx, tx, `ORDER BY id`)
		return err
	})
	if err != nil {
		return nil, storage("list hosts", err)
	}
	hosts := make([]holdfast.Host, len(rows))
	for i, h := range rows {
		hosts[i] = h.Host
	}
	return hosts, nil
}

// Heartbeat takes a host's telemetry; the first one registers it. One that is
// older than the last changes nothing (contract: D3), and duty, which is the
// operators' word, is never touched. A LOST host that beats again stays LOST
// until it is rid of what is no longer its own (see takeBack).
func (s *Service) Heartbeat(ctx context.Context, beat holdfast.Heartbeat) error {
	if err := checkHeartbeat(beat); err != nil {
		return err
	}
	if err := s.recognize(ctx, beat.Cluster); err != nil {
		return err
	}
	images, err := encode(beat.Images, len(beat.Images) == 0)
	if err != nil {
		return fmt.Errorf("heartbeat of %s: %w", beat.Host, err)
	}
	var rebooted bool
	err = s.db.Update(ctx, func(tx store.Tx) error {
		now, err := tx.Now(ctx)
		if err != nil {
			return fmt.Errorf("read the clock: %w", err)
		}
		at := store.Micros(now)
		n, err := affected(tx.ExecContext(ctx, `INSERT INTO host (id, name, url, runtime, boot_id, boot_changed_at, health,
				health_at, duty, cpu_millis, memory_bytes, instances, used_cpu_millis, used_memory_bytes, used_instances,
				sequence, seen_at, created_at, images)
			VALUES ($1, $2, $3, $4, $5, $6, 'READY', $6, 'ACTIVE', $7, $8, $9, 0, 0, 0, $10, $6, $6, $11)
			ON CONFLICT (id) DO UPDATE SET name = excluded.name, url = excluded.url, runtime = excluded.runtime,
				boot_changed_at = CASE WHEN host.boot_id = excluded.boot_id THEN host.boot_changed_at ELSE excluded.seen_at END,
				boot_id = excluded.boot_id, images = excluded.images,
				health = CASE WHEN host.health = 'LOST' THEN host.health ELSE 'READY' END,
				health_at = CASE WHEN host.health IN ('READY', 'LOST') THEN host.health_at ELSE excluded.seen_at END,
				cpu_millis = excluded.cpu_millis, memory_bytes = excluded.memory_bytes, instances = excluded.instances,
				sequence = excluded.sequence, seen_at = excluded.seen_at
			WHERE host.sequence < excluded.sequence`,
			string(beat.Host), beat.Name, beat.URL, beat.Runtime, beat.BootID, at,
			beat.Capacity.CPUMillis, beat.Capacity.MemoryBytes, beat.Capacity.Instances, beat.Sequence, images))
		if err != nil {
			return fmt.Errorf("record the heartbeat: %w", err)
		}
		if n == 0 {
			return nil
		}
		var changed, created int64
		err = tx.QueryRowContext(ctx, `SELECT boot_changed_at, created_at FROM host WHERE id = $1`, string(beat.Host)).Scan(&changed, &created)
		rebooted = changed == at && created != at
		return err
	})
	if err != nil {
		return storage("heartbeat of "+string(beat.Host), err)
	}
	if rebooted {
		s.log.LogAttrs(ctx, slog.LevelWarn, "host booted anew", slog.String("host", string(beat.Host)), slog.String("boot_id", beat.BootID))
	}
	return nil
}

func checkHeartbeat(beat holdfast.Heartbeat) error {
	if err := holdfast.CheckID("host", holdfast.PrefixHost, string(beat.Host)); err != nil {
		return err
	}
	if u, err := url.Parse(beat.URL); err != nil || u.Scheme == "" || u.Host == "" {
		return bad("url", "url %q is not an absolute URL at which the fleet reaches the host", beat.URL)
	}
	c := beat.Capacity
	if c.CPUMillis < 0 || c.MemoryBytes < 0 || c.Instances < 0 {
		return bad("capacity", "a capacity is not negative")
	}
	if len(beat.Images) > holdfast.MaxHostImages {
		return bad("images", "%d images: a heartbeat names at most %d", len(beat.Images), holdfast.MaxHostImages)
	}
	if beat.Sequence < 1 {
		return bad("sequence", "sequence %d: it begins at 1 and rises over restarts", beat.Sequence)
	}
	return nil
}

func bad(field, format string, args ...any) error {
	return holdfast.E(holdfast.InvalidArgument, holdfast.ReasonBadField, format, args...).With("field", field)
}
