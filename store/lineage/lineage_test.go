package lineage_test

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/internal/testenv"
	"github.com/holdfast-dev/holdfast/store"
	"github.com/holdfast-dev/holdfast/store/lineage"
	"github.com/holdfast-dev/holdfast/store/postgres"
	"github.com/holdfast-dev/holdfast/store/sqlite"
)

func open(t *testing.T) store.DB {
	t.Helper()
	var db store.DB
	var err error
	if url, schema, ok := testenv.PostgresSchema(t); ok {
		db, err = postgres.Open(t.Context(), postgres.Config{URL: url, Schema: schema}, lineage.Migrations())
	} else {
		db, err = sqlite.Open(t.Context(), sqlite.Config{Path: filepath.Join(t.TempDir(), "db")}, lineage.Migrations())
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return db
}

func TestOnPostgres(t *testing.T) { testenv.OnPostgres(t) }

type writes func(ctx context.Context, tx store.Tx) (lineage.Lineage, error)

func follow(cluster string, epoch int64) writes {
	return func(ctx context.Context, tx store.Tx) (lineage.Lineage, error) {
		return lineage.Follow(ctx, tx, cluster, epoch)
	}
}

// trap T52: a database belongs to one cluster for ever, and its epoch only rises.
func TestT52_ADatabaseIsOneClustersAndItsEpochOnlyRises(t *testing.T) {
	at := time.UnixMicro(1_800_000_000_000_000).UTC()
	restored := func(epoch int64) writes {
		return func(ctx context.Context, tx store.Tx) (lineage.Lineage, error) {
			return lineage.Recover(ctx, tx, at, epoch)
		}
	}
	db := open(t)
	for i, step := range []struct {
		do      writes
		cluster string
		epoch   int64
	}{
		{lineage.Read, "", 0},
		{restored(5), "", 5}, // before it knows whose it is
		{follow("cl-1", 0), "cl-1", 5},
		{follow("cl-2", 9), "cl-1", 5},
		{follow("cl-1", 4), "cl-1", 5},
		{follow("cl-1", 6), "cl-1", 6},
		{restored(3), "cl-1", 6},
		{restored(20), "cl-1", 20},
		{lineage.Read, "cl-1", 20},
	} {
		var got lineage.Lineage
		err := db.Update(t.Context(), func(tx store.Tx) (err error) {
			got, err = step.do(t.Context(), tx)
			return err
		})
		if err != nil || got.Cluster != step.cluster || got.Epoch != step.epoch {
			t.Fatalf("step %d: %+v, %v; want %q %d", i, got, err, step.cluster, step.epoch)
		}
	}
}

// What is older than the recovery is kept until a person says that it is nobody's.
func TestT52_TheUnknownIsKeptUntilAPersonForgetsIt(t *testing.T) {
	recovered := time.UnixMicro(1_800_000_000_000_000).UTC()
	before, after := recovered.Add(-time.Minute), recovered.Add(time.Minute)
	db := open(t)
	var never, kept, forgotten lineage.Lineage
	err := db.Update(t.Context(), func(tx store.Tx) (err error) {
		if never, err = lineage.Follow(t.Context(), tx, "cl-1", 0); err != nil {
			return err
		}
		if kept, err = lineage.Recover(t.Context(), tx, recovered, 1); err != nil {
			return err
		}
		forgotten, err = lineage.Forget(t.Context(), tx, after)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct{ keeps, want bool }{
		"never recovered":                {never.Keeps(before), false},
		"recovered, older":               {kept.Keeps(before), true},
		"recovered, younger":             {kept.Keeps(after), false},
		"forgotten, older":               {forgotten.Keeps(before), false},
		"never forgotten":                {kept.Forgets(before), false},
		"forgotten, and older than that": {forgotten.Forgets(before), true},
		"forgotten, and younger":         {forgotten.Forgets(after.Add(time.Second)), false},
	} {
		if c.keeps != c.want {
			t.Errorf("%s: %v", name, c.keeps)
		}
	}
}
