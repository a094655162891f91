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
	// life is of the agent's process that is heard; bootChangedAt when its machine
	// was last seen to have booted.
	life          string
	bootChangedAt time.Time
	// shadowed: another host, seen later, claims its URL. What answers there is
	// not this host, whatever it says (T27).
	shadowed bool
}

const selectHost = `SELECT id, name, url, runtime, boot_id, health, health_at, duty, duty_reason, duty_at, images,
	cpu_millis, memory_bytes, instances, used_cpu_millis, used_memory_bytes, used_instances, seen_at, gone_at, created_at,
	life, boot_changed_at,
	EXISTS (SELECT 1 FROM host o WHERE o.url = host.url AND o.id <> host.id AND o.seen_at > host.seen_at) FROM host `

func scanHost(scan func(...any) error) (hostRow, error) {
	var h hostRow
	var healthAt, dutyAt, seenAt, goneAt, createdAt, bootAt int64
	var images string
	err := scan(&h.ID, &h.Name, &h.URL, &h.Runtime, &h.BootID, &h.Health, &healthAt, &h.Duty, &h.DutyReason, &dutyAt, &images,
		&h.Capacity.CPUMillis, &h.Capacity.MemoryBytes, &h.Capacity.Instances,
		&h.Used.CPUMillis, &h.Used.MemoryBytes, &h.Used.Instances, &seenAt, &goneAt, &createdAt, &h.life, &bootAt, &h.shadowed)
	h.healthAt, h.DutyAt, h.SeenAt = store.FromMicros(healthAt), store.FromMicros(dutyAt), store.FromMicros(seenAt)
	h.GoneAt, h.CreatedAt, h.bootChangedAt = store.FromMicros(goneAt), store.FromMicros(createdAt), store.FromMicros(bootAt)
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
//
// One agent alone is a host: of two with one id, as of a copied data directory,
// the second is refused, FAILED_PRECONDITION, reason HOST_TWIN, as long as the
// first one answers.
func (s *Service) Heartbeat(ctx context.Context, beat holdfast.Heartbeat) error {
	if err := checkHeartbeat(beat); err != nil {
		return err
	}
	if err := s.recognize(ctx, beat.Cluster); err != nil {
		return err
	}
	other, err := s.recordBeat(ctx, beat, "")
	if err != nil || other == nil {
		return err
	}
	asking, cancel := context.WithTimeout(ctx, s.limits.AskTimeout)
	defer cancel()
	who, err := s.dial(other.URL).Identity(asking)
	if err == nil && who.Host == beat.Host && who.Life == other.life {
		return holdfast.E(holdfast.FailedPrecondition, holdfast.ReasonHostTwin,
			"%s at %s serves as host %s already: if this one's data directory is a copy of that one's, empty it, and this is a new host",
			other.Name, other.URL, beat.Host).On(string(beat.Host)).With("url", other.URL)
	}
	s.log.LogAttrs(ctx, slog.LevelWarn, "another agent is the host now; the one before does not answer as that any more",
		slog.String("host", string(beat.Host)), slog.String("before", other.URL), slog.String("now", beat.URL))
	_, err = s.recordBeat(ctx, beat, other.life)
	return err
}

// upsertHost takes a heartbeat that follows the last one: of the same agent, of
// its next run at the same place, or of another where the one before is ousted.
const upsertHost = `INSERT INTO host (id, name, url, runtime, boot_id, boot_changed_at, health,
		health_at, duty, cpu_millis, memory_bytes, instances, used_cpu_millis, used_memory_bytes, used_instances,
		sequence, seen_at, created_at, images, life)
	VALUES ($1, $2, $3, $4, $5, $6, 'READY', $6, 'ACTIVE', $7, $8, $9, 0, 0, 0, $10, $6, $6, $11, $12)
	ON CONFLICT (id) DO UPDATE SET name = excluded.name, url = excluded.url, runtime = excluded.runtime,
		boot_changed_at = CASE WHEN host.boot_id = excluded.boot_id THEN host.boot_changed_at ELSE excluded.seen_at END,
		boot_id = excluded.boot_id, images = excluded.images, life = excluded.life,
		health = CASE WHEN host.health = 'LOST' THEN host.health ELSE 'READY' END,
		health_at = CASE WHEN host.health IN ('READY', 'LOST') THEN host.health_at ELSE excluded.seen_at END,
		cpu_millis = excluded.cpu_millis, memory_bytes = excluded.memory_bytes, instances = excluded.instances,
		sequence = excluded.sequence, seen_at = excluded.seen_at
	WHERE host.sequence < excluded.sequence
		AND (host.life = excluded.life OR host.life = '' OR excluded.life = '' OR host.url = excluded.url)
		OR host.life <> '' AND host.life = $13`

// recordBeat records a heartbeat. It returns the host as another agent has
// registered it, if that is why nothing was recorded; ousted is the life of one
// that does not answer any more, "" for none.
func (s *Service) recordBeat(ctx context.Context, beat holdfast.Heartbeat, ousted string) (other *hostRow, err error) {
	images, err := encode(beat.Images, len(beat.Images) == 0)
	if err != nil {
		return nil, fmt.Errorf("heartbeat of %s: %w", beat.Host, err)
	}
	var rebooted bool
	err = s.db.Update(ctx, func(tx store.Tx) error {
		rebooted, other = false, nil
		now, err := tx.Now(ctx)
		if err != nil {
			return fmt.Errorf("read the clock: %w", err)
		}
		at := store.Micros(now)
		n, err := affected(tx.ExecContext(ctx, upsertHost,
			string(beat.Host), beat.Name, beat.URL, beat.Runtime, beat.BootID, at,
			beat.Capacity.CPUMillis, beat.Capacity.MemoryBytes, beat.Capacity.Instances, beat.Sequence, images, beat.Life, ousted))
		if err != nil {
			return fmt.Errorf("record the heartbeat: %w", err)
		}
		h, _, err := getHost(ctx, tx, beat.Host, "")
		if err != nil {
			return err
		}
		switch {
		case n == 1:
			rebooted = store.Micros(h.bootChangedAt) == at && !h.CreatedAt.Equal(h.bootChangedAt)
		case h.life != beat.Life && h.life != "" && beat.Life != "":
			other = &h
		}
		return nil
	})
	if err != nil {
		return nil, storage("heartbeat of "+string(beat.Host), err)
	}
	if rebooted {
		s.log.LogAttrs(ctx, slog.LevelWarn, "host booted anew", slog.String("host", string(beat.Host)), slog.String("boot_id", beat.BootID))
	}
	return other, nil
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
