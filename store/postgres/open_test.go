package postgres_test

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/fstest"

	"github.com/holdfast-dev/holdfast/internal/testenv"
	"github.com/holdfast-dev/holdfast/store"
	"github.com/holdfast-dev/holdfast/store/postgres"
	"github.com/holdfast-dev/holdfast/store/storetest"
)

// migrations makes n migrations, each of a table of its own.
func migrations(name string, n int) store.Migrations {
	fsys := fstest.MapFS{}
	for i := 1; i <= n; i++ {
		v := string(rune('0' + i))
		fsys["0000"+v+"_add.sql"] = &fstest.MapFile{
			Data: []byte("-- +goose Up\nCREATE TABLE " + name + v + " (k TEXT PRIMARY KEY);\n"),
		}
	}
	return store.Migrations{Name: name, FS: fsys}
}

// Bad input: whatever is wrong with a database is found at the start, and told with what to do. No message repeats a
// password.
func TestOpenSaysWhatIsWrong(t *testing.T) {
	server := testenv.SharedPostgres(t)
	exec := func(database string, statements ...string) {
		t.Helper()
		if err := server.Exec(t.Context(), database, statements...); err != nil {
			t.Fatal(err)
		}
	}
	exec("postgres", "CREATE ROLE weak LOGIN PASSWORD 'hidden'")
	plain, readOnly := server.Database(t), server.Database(t)
	exec("postgres", "ALTER DATABASE "+readOnly+" SET default_transaction_read_only = on")
	as := func(user, database string) string {
		return "postgres://" + user + ":hidden@" + server.Address() + "/" + database
	}
	for _, tc := range []struct {
		name, url, schema string
		want              string
	}{
		{"no URL", "", "test", "it must be like postgres://"},
		{"another kind", "mysql://u:hidden@host/x", "test", "it must be like postgres://"},
		{"no URL at all", "postgres://u:hidden@host:port/x", "test", "it must be like postgres://"},
		{"a wrong setting", "postgres://u:hidden@host/x?sslmode=perhaps", "test", "cannot be used"},
		{"a setting unknown to the server", server.URL(plain) + "?no_such_setting=1", "test", "no_such_setting"},
		{"a wrong schema", server.URL(plain), "a;b", "lower-case"},
		{"nobody listens", "postgres://u:hidden@127.0.0.1:1/x", "test", "no PostgreSQL server answers at 127.0.0.1:1: start it"},
		{"no such host", "postgres://u:hidden@host.invalid/x", "test", "host.invalid"},
		{"a wrong password", as("holdfast", plain), "test", `the server refuses the user "holdfast": correct user and password`},
		{"a missing database", server.URL("nowhere"), "test", "createdb nowhere"},
		{"too few rights", as("weak", plain), "test", "GRANT CREATE, CONNECT ON DATABASE " + plain + " TO weak"},
		{"read-only", server.URL(readOnly), "test", "name the primary"},
		{"another encoding", server.URL(server.Database(t, "ENCODING 'SQL_ASCII'", "TEMPLATE template0")), "test", "createdb -E UTF8"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			db, err := postgres.Open(t.Context(), postgres.Config{URL: tc.url, Schema: tc.schema}, storetest.Migrations())
			if err == nil {
				t.Fatal("it was opened", db.Close())
			}
			if !strings.Contains(err.Error(), tc.want) {
				t.Errorf("the error does not say %q: %v", tc.want, err)
			}
			if strings.Contains(err.Error(), "hidden") {
				t.Errorf("the error repeats a password: %v", err)
			}
		})
	}
}

// Bad input: an old program on a new database changes nothing, not even what is behind.
func TestNewerSchemaIsRefusedAndUntouched(t *testing.T) {
	cfg := config(t)
	opened := func(all ...store.Migrations) error {
		db, err := postgres.Open(t.Context(), cfg, all...)
		if err != nil {
			return err
		}
		return db.Close()
	}
	if err := opened(migrations("operation", 3)); err != nil {
		t.Fatal(err)
	}
	err := opened(migrations("inbox", 1), migrations("operation", 2))
	if !errors.Is(err, store.ErrNewerSchema) || !strings.Contains(err.Error(), "Run the version") {
		t.Fatalf("Open = %v, want ErrNewerSchema and what to do", err)
	}
	if err := opened(migrations("operation", 3), migrations("inbox", 1)); err != nil {
		t.Errorf("the refused program changed the schema: %v", err)
	}
}

// Replicas that start together on an empty database all come up, and each migration was applied once.
func TestReplicasThatStartTogetherTakeTurnsAtTheMigrations(t *testing.T) {
	cfg := config(t)
	gate := open(t, cfg)
	cfg.Schema = "fresh"
	gated := migrations("gated", 1)
	gated.FS.(fstest.MapFS)["00001_add.sql"].Data = []byte("-- +goose Up\nSELECT pg_advisory_xact_lock(42);\nCREATE TABLE gated (k TEXT);\n")
	errs := make([]error, 4)
	var all sync.WaitGroup
	err := gate.Update(t.Context(), func(tx store.Tx) error {
		if _, err := tx.ExecContext(t.Context(), "SELECT pg_advisory_xact_lock(42)"); err != nil {
			return err
		}
		for i := range errs {
			all.Go(func() {
				db, err := postgres.Open(t.Context(), cfg, gated, migrations("a", 2), storetest.Migrations())
				if err == nil {
					err = db.Close()
				}
				errs[i] = err
			})
		}
		waiters(t, gate, len(errs)) // one is in the middle of it
		return nil
	})
	all.Wait()
	if err := errors.Join(append(errs, err)...); err != nil {
		t.Error(err)
	}
}

// Parties that share a server share nothing on it.
func TestSchemasAreApart(t *testing.T) {
	cfg := config(t)
	a := open(t, cfg)
	cfg.Schema = "other"
	b := open(t, cfg)
	if err := a.Update(t.Context(), putting("x", 1)); err != nil {
		t.Fatal(err)
	}
	if has(t, b, "x") {
		t.Error("one schema's row is in the other")
	}
}

// Pages by id are the same on every server, whatever its locale: text compares by bytes.
func TestTextComparesByBytesWhateverTheLocale(t *testing.T) {
	server := testenv.SharedPostgres(t)
	name := server.Database(t, "TEMPLATE template0", "LOCALE_PROVIDER icu", "ICU_LOCALE 'en-US'", "LOCALE 'C'")
	for range 2 { // the second start finds nothing to do
		db := open(t, postgres.Config{URL: server.URL(name), Schema: "test"})
		want := []string{"B", "_", "a", "a-b", "ab", "é"}
		err := db.Update(t.Context(), func(tx store.Tx) error {
			if _, err := tx.ExecContext(t.Context(), "DELETE FROM thing"); err != nil {
				return err
			}
			for _, k := range want {
				if err := storetest.Put(tx, k, 1); err != nil {
					return err
				}
			}
			var got string
			err := tx.QueryRowContext(t.Context(), "SELECT string_agg(k, ' ' ORDER BY k) FROM thing").Scan(&got)
			if got != strings.Join(want, " ") {
				t.Errorf("ordered %s, want %s", got, strings.Join(want, " "))
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// An Update is durable when it returns, also on a server whose default is that it is not.
func TestCommitsAreDurableWhateverTheServersDefault(t *testing.T) {
	server := testenv.SharedPostgres(t)
	for given, want := range map[string]string{"off": "on", "remote_apply": "remote_apply", "local": "local"} {
		name := server.Database(t)
		if err := server.Exec(t.Context(), "postgres", "ALTER DATABASE "+name+" SET synchronous_commit = "+given); err != nil {
			t.Fatal(err)
		}
		db := open(t, postgres.Config{URL: server.URL(name), Schema: "test"})
		var got string
		if err := db.View(t.Context(), func(tx store.Tx) error {
			return tx.QueryRowContext(t.Context(), "SHOW synchronous_commit").Scan(&got)
		}); err != nil || got != want {
			t.Errorf("with %s it is %s (%v), want %s", given, got, err, want)
		}
	}
}

// contract: C6: a server that is away is an error at once and no unknown outcome, and once it is back the first update
// succeeds, though every connection in the pool has died.
func TestC6_ARestartedServerIsFoundAgainAtOnce(t *testing.T) {
	server := testenv.StartPostgres(t)
	db := open(t, postgres.Config{URL: server.URL(server.Database(t)), Schema: "test"})
	var all sync.WaitGroup
	for range 8 { // fill the pool
		all.Go(func() {
			if err := db.View(t.Context(), func(tx store.Tx) error {
				_, err := tx.ExecContext(t.Context(), "SELECT pg_sleep(0.05)")
				return err
			}); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	fill(t, db, "a")
	for _, end := range []func() error{server.Crash, server.Stop} {
		if err := end(); err != nil {
			t.Fatal(err)
		}
		if err := db.Update(t.Context(), putting("b", 1)); err == nil || errors.Is(err, store.ErrUnknownOutcome) {
			t.Errorf("Update without a server = %v, want a known failure", err)
		}
		if err := server.Start(); err != nil {
			t.Fatal(err)
		}
		if !has(t, db, "a") || has(t, db, "b") {
			t.Error("not the right things are there")
		}
	}
	fill(t, db, "b")
	for _, end := range []func() error{server.Crash, server.Stop} { // and with no call in between
		if err := errors.Join(end(), server.Start()); err != nil {
			t.Fatal(err)
		}
		if err := db.Update(t.Context(), func(tx store.Tx) error { return lock(tx, "a") }); err != nil {
			t.Errorf("the first Update after a restart: %v", err)
		}
	}
}
