package orchestrator

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/operation"
	"github.com/holdfast-dev/holdfast/store"
)

// kindBuild is the kind under which builds' operations are recorded.
const kindBuild = "build"

// buildRow is a build as it is stored.
type buildRow struct {
	holdfast.Build
	SupersededBy holdfast.BuildID
	Prepared     bool // the recipe's files are in the builder, and are never written again
	SetupEnded   time.Time
	ExitCode     int
	LogTail      string
	Log          buildLog
	Cleared      bool                // nothing is left of the builder
	Kept         bool                // something new may be made of it
	was          holdfast.BuildState // as it was read or saved last
}

// buildLog is where a build's log is kept: the last bytes of it, from an offset on.
type buildLog struct {
	Key        string
	From, Size int64
}

func (b buildRow) resource() operation.Resource {
	return operation.Resource{Kind: kindBuild, ID: string(b.ID)}
}

// checkpoint is the id under which the builder's disk is copied: internal, and one for
// all attempts.
func (b buildRow) checkpoint() holdfast.CheckpointID {
	return holdfast.CheckpointID(holdfast.PrefixCheckpoint + string(b.ID[len(holdfast.PrefixBuild):]))
}

// buildOf is the build whose builder's disk is copied under an id.
func buildOf(id holdfast.CheckpointID) holdfast.BuildID {
	return holdfast.BuildID(holdfast.PrefixBuild + string(id[len(holdfast.PrefixCheckpoint):]))
}

// caller is who the build acts for.
func (b buildRow) caller() holdfast.Caller {
	return holdfast.Caller{Project: b.Project, Name: string(b.ID)}
}

const buildColumns = `id, project, environment, name, version, state, failure, superseded_by, sandbox, prepared, process,
	setup_ended, exit_code, log_tail, image, layers, log_key, log_from, log_size, cleared, kept, created_at, updated_at, deadline, finished_at`

func scanBuild(scan func(...any) error) (buildRow, error) {
	var b buildRow
	var failure, layers string
	var ended, created, updated, deadline, finished int64
	err := scan(&b.ID, &b.Project, &b.Environment, &b.Name, &b.Version, &b.State, &failure, &b.SupersededBy, &b.Sandbox, &b.Prepared, &b.Process,
		&ended, &b.ExitCode, &b.LogTail, &b.Image, &layers, &b.Log.Key, &b.Log.From, &b.Log.Size, &b.Cleared, &b.Kept, &created, &updated, &deadline, &finished)
	if err != nil {
		return b, err
	}
	b.was = b.State
	b.SetupEnded, b.CreatedAt, b.UpdatedAt = store.FromMicros(ended), store.FromMicros(created), store.FromMicros(updated)
	b.Deadline, b.FinishedAt = store.FromMicros(deadline), store.FromMicros(finished)
	for _, column := range []struct {
		text string
		into any
	}{{failure, &b.Failure}, {layers, &b.Layers}} {
		if column.text == "" {
			continue
		}
		if err := json.Unmarshal([]byte(column.text), column.into); err != nil {
			return b, fmt.Errorf("build %s: %w", b.ID, err)
		}
	}
	return b, nil
}

// oneBuild reads a build; lock is the transaction's, or "".
func oneBuild(ctx context.Context, tx store.Tx, id holdfast.BuildID, lock string) (buildRow, bool, error) {
	b, err := scanBuild(tx.QueryRowContext(ctx, `SELECT `+buildColumns+` FROM environment_build WHERE id = $1`+lock, string(id)).Scan)
	if errors.Is(err, sql.ErrNoRows) {
		return b, false, nil
	}
	if err != nil {
		return b, false, fmt.Errorf("read build %s: %w", id, err)
	}
	return b, true, nil
}

// lockBuild reads a build for a decision; the instant is that at which it is locked
// (trap T41). Where its sandbox matters too, that is locked before (contract: D3).
func lockBuild(ctx context.Context, tx store.Tx, id holdfast.BuildID) (b buildRow, found bool, now time.Time, err error) {
	if b, found, err = oneBuild(ctx, tx, id, tx.ForUpdate()); err == nil {
		now, err = tx.Now(ctx)
	}
	return b, found, now, err
}

// insert writes a new build, and tells those who subscribed.
func (b *buildRow) insert(ctx context.Context, tx store.Tx) error {
	_, err := tx.ExecContext(ctx, `INSERT INTO environment_build (id, project, environment, name, version, state, sandbox, image, cleared,
		created_at, updated_at, deadline, finished_at) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $10, $11, $12)`,
		string(b.ID), string(b.Project), string(b.Environment), b.Name, b.Version, string(b.State), string(b.Sandbox), b.Image, b.Cleared,
		store.Micros(b.CreatedAt), store.Micros(b.Deadline), store.Micros(b.FinishedAt))
	if err != nil {
		return fmt.Errorf("insert build: %w", err)
	}
	b.was = "" // also where the transaction is tried again
	return b.tell(ctx, tx, b.CreatedAt)
}

// save writes what may change of a locked build, and tells those who subscribed.
func (b *buildRow) save(ctx context.Context, tx store.Tx, now time.Time) error {
	failure, err := optionalJSON(b.Failure, b.Failure == nil)
	if err != nil {
		return fmt.Errorf("save build %s: %w", b.ID, err)
	}
	layers, err := optionalJSON(b.Layers, len(b.Layers) == 0)
	if err != nil {
		return fmt.Errorf("save build %s: %w", b.ID, err)
	}
	b.UpdatedAt = now
	b.Kept = b.Kept && b.State != holdfast.BuildFailed && b.State != holdfast.BuildSuperseded
	_, err = tx.ExecContext(ctx, `UPDATE environment_build SET state = $2, failure = $3, superseded_by = $4, prepared = $5, process = $6,
		setup_ended = $7, exit_code = $8, log_tail = $9, layers = $10, log_key = $11, log_from = $12, log_size = $13, cleared = $14,
		updated_at = $15, finished_at = $16, kept = $17 WHERE id = $1`,
		string(b.ID), string(b.State), failure, string(b.SupersededBy), b.Prepared, string(b.Process), store.Micros(b.SetupEnded), b.ExitCode,
		b.LogTail, layers, b.Log.Key, b.Log.From, b.Log.Size, b.Cleared, store.Micros(now), store.Micros(b.FinishedAt), b.Kept)
	if err != nil {
		return fmt.Errorf("save build %s: %w", b.ID, err)
	}
	return b.tell(ctx, tx, now)
}

// outdated lets go of the builds of a version that a newer READY one follows.
func (b buildRow) outdated(ctx context.Context, tx store.Tx) error {
	_, err := tx.ExecContext(ctx, `UPDATE environment_build SET kept = FALSE WHERE environment = $1 AND version = $2 AND id <> $3 AND state = 'READY'`,
		string(b.Environment), b.Version, string(b.ID))
	if err != nil {
		return fmt.Errorf("let go of the builds before %s: %w", b.ID, err)
	}
	return nil
}

// recipeOf is the recipe of the version that a build is of.
func recipeOf(ctx context.Context, tx store.Tx, b buildRow) (recipe holdfast.Recipe, err error) {
	var raw string
	err = tx.QueryRowContext(ctx, `SELECT recipe FROM environment_version WHERE environment = $1 AND version = $2`,
		string(b.Environment), b.Version).Scan(&raw)
	if err == nil {
		err = json.Unmarshal([]byte(raw), &recipe)
	}
	if err != nil {
		return recipe, fmt.Errorf("read the recipe of build %s: %w", b.ID, err)
	}
	return recipe, nil
}
