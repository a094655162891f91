// Package lineage keeps in a database which cluster it belongs to and its epoch,
// so that a wrong, an empty or a restored database is told from the right one
// before it orders anything destroyed (trap T52). It knows no noun of the domain.
package lineage

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/holdfast-dev/holdfast/store"
)

// Lineage is what a database says of itself. The zero value is an empty one's.
type Lineage struct {
	Cluster string // "": not known yet
	// Epoch rises with every recovery: orders of an older one are refused. It is 0
	// before the first, then that recovery's instant in seconds since 1970, so that a
	// database restored from before a recovery cannot arrive at the same one twice.
	Epoch       int64
	RecoveredAt time.Time // of the last recovery; zero: never
	ForgottenAt time.Time // when it was last said that the unknown is nobody's; zero: never
}

// Keeps reports whether something that was born then and is not recorded here may
// be what the restored database has lost: it is kept until a person says otherwise.
func (l Lineage) Keeps(born time.Time) bool {
	return born.Before(l.RecoveredAt) && !born.Before(l.ForgottenAt)
}

// Forgets reports whether a person has said that such a thing is nobody's.
func (l Lineage) Forgets(born time.Time) bool { return born.Before(l.ForgottenAt) }

//go:embed migrations/*.sql
var migrationFiles embed.FS

// Migrations make the table.
func Migrations() store.Migrations {
	own, err := fs.Sub(migrationFiles, "migrations")
	if err != nil {
		panic(err) // the path is a constant of this file, and valid
	}
	return store.Migrations{Name: "lineage", FS: own}
}

// Read returns what the database says of itself.
func Read(ctx context.Context, tx store.Tx) (Lineage, error) {
	var l Lineage
	var recovered, forgotten int64
	err := tx.QueryRowContext(ctx, `SELECT cluster, epoch, recovered_at, forgotten_at FROM lineage WHERE single = 1`).
		Scan(&l.Cluster, &l.Epoch, &recovered, &forgotten)
	if errors.Is(err, sql.ErrNoRows) {
		return Lineage{}, nil
	}
	if err != nil {
		return Lineage{}, fmt.Errorf("read the database's lineage: %w", err)
	}
	l.RecoveredAt, l.ForgottenAt = store.FromMicros(recovered), store.FromMicros(forgotten)
	return l, nil
}

// Follow makes a database that belongs to no cluster yet this one's, and raises
// its epoch to a higher one of its own cluster. It returns what holds then: another
// cluster's order, or one of an older epoch, changes nothing.
func Follow(ctx context.Context, tx store.Tx, cluster string, epoch int64) (Lineage, error) {
	_, err := tx.ExecContext(ctx, `INSERT INTO lineage (single, cluster, epoch, recovered_at, forgotten_at) VALUES (1, $1, $2, 0, 0)
		ON CONFLICT (single) DO UPDATE SET cluster = excluded.cluster,
			epoch = CASE WHEN lineage.epoch < excluded.epoch THEN excluded.epoch ELSE lineage.epoch END
		WHERE lineage.cluster = '' OR lineage.cluster = excluded.cluster AND lineage.epoch < excluded.epoch`, cluster, epoch)
	if err != nil {
		return Lineage{}, fmt.Errorf("keep the database's lineage: %w", err)
	}
	return Read(ctx, tx)
}

// Recover records that the database was restored, and raises its epoch to the
// given one if that is higher.
func Recover(ctx context.Context, tx store.Tx, now time.Time, epoch int64) (Lineage, error) {
	return record(ctx, tx, `INSERT INTO lineage (single, cluster, epoch, recovered_at, forgotten_at) VALUES (1, '', $1, $2, 0)
		ON CONFLICT (single) DO UPDATE SET recovered_at = excluded.recovered_at,
			epoch = CASE WHEN lineage.epoch < excluded.epoch THEN excluded.epoch ELSE lineage.epoch END`, epoch, store.Micros(now))
}

// Forget records a person's word that whatever is older than now and not recorded
// is nobody's.
func Forget(ctx context.Context, tx store.Tx, now time.Time) (Lineage, error) {
	return record(ctx, tx, `UPDATE lineage SET forgotten_at = $1`, store.Micros(now))
}

func record(ctx context.Context, tx store.Tx, statement string, args ...any) (Lineage, error) {
	if _, err := tx.ExecContext(ctx, statement, args...); err != nil {
		return Lineage{}, fmt.Errorf("keep the database's lineage: %w", err)
	}
	return Read(ctx, tx)
}
