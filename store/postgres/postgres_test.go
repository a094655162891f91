package postgres_test

import (
	"testing"

	"github.com/holdfast-dev/holdfast/internal/testenv"
	"github.com/holdfast-dev/holdfast/store"
	"github.com/holdfast-dev/holdfast/store/postgres"
	"github.com/holdfast-dev/holdfast/store/storetest"
)

// config is an empty schema of a database of this test's own, as the product reaches it: over TCP.
func config(t *testing.T) postgres.Config {
	t.Helper()
	server := testenv.SharedPostgres(t)
	return postgres.Config{URL: server.URL(server.Database(t)), Schema: "test"}
}

func open(t *testing.T, cfg postgres.Config) *postgres.DB {
	t.Helper()
	db, err := postgres.Open(t.Context(), cfg, storetest.Migrations())
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

func TestConformance(t *testing.T) {
	storetest.Run(t, func(t *testing.T) store.DB { return open(t, config(t)) })
}

func TestDurability(t *testing.T) {
	storetest.RunDurable(t, func(t *testing.T) func() (store.DB, error) {
		cfg := config(t)
		return func() (store.DB, error) { return postgres.Open(t.Context(), cfg, storetest.Migrations()) }
	})
}

func TestJointConformance(t *testing.T) {
	storetest.RunJoint(t, func(t *testing.T) storetest.JointDB { return open(t, config(t)) })
}
