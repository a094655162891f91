package inbox_test

import (
	"context"
	"database/sql"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"time"

	"github.com/pressly/goose/v3"
	_ "modernc.org/sqlite"

	"github.com/holdfast-dev/holdfast/delivery"
	"github.com/holdfast-dev/holdfast/delivery/inbox"
)

// A guest reports that it is ready, twice. The state changes once, in the receiver's
// own transaction on its own *sql.DB.
func Example() {
	dir, err := os.MkdirTemp("", "inbox")
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	db, err := sql.Open("sqlite", "file:"+filepath.Join(dir, "db")+"?_pragma=busy_timeout(5000)&_txlock=immediate")
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	ctx := context.Background()
	if err := migrate(ctx, db); err != nil {
		log.Fatal(err)
	}

	// The receiver: any replica can verify any boot, since the secret is derived.
	key := []byte("the cluster's key")
	options := delivery.Options{Authenticate: func(*http.Request) (delivery.Source, error) {
		return delivery.Source{
			Name:    delivery.InstanceSource("in-1", 1),
			Secrets: [][]byte{delivery.InstanceSecret(key, "in-1", 1)},
		}, nil
	}}
	server := httptest.NewServer(delivery.Handle(options, func(ctx context.Context, r delivery.Received) error {
		return ready(ctx, db, r)
	}))
	defer server.Close()

	// The sender: a guest that restarts derives the same id for the same event.
	sender := delivery.Sender{Secret: delivery.InstanceSecret(key, "in-1", 1), URL: server.URL}
	for range 2 {
		message := delivery.Message{
			ID:   delivery.DeriveID("instance.ready", "in-1", 1, "boot"),
			Kind: "instance.ready",
			Body: []byte(`{"instance": "in-1"}`),
		}
		if err := sender.Send(ctx, message); err != nil {
			log.Fatal(err)
		}
	}
	var times int
	if err := db.QueryRowContext(ctx, `SELECT times_ready FROM sandbox WHERE id = 'in-1'`).Scan(&times); err != nil {
		log.Fatal(err)
	}
	fmt.Println("became ready", times, "time")
	// Output:
	// applied instance.ready
	// a repeat: nothing to do
	// became ready 1 time
}

// ready is the receiver's transaction: the record, the effect and the note are one.
func ready(ctx context.Context, db *sql.DB, r delivery.Received) (err error) {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			// The answer is an error already, and so is what a failed rollback leaves.
			_ = tx.Rollback()
		}
	}()
	fresh, err := inbox.Record(ctx, tx, inbox.Delivery{
		Source: r.Source, ID: r.ID, Kind: r.Kind, ReceivedAt: r.ReceivedAt, Body: r.Body,
	})
	if err != nil {
		return err
	}
	if !fresh {
		fmt.Println("a repeat: nothing to do")
		return tx.Commit()
	}
	res, err := tx.ExecContext(ctx, `UPDATE sandbox SET times_ready = times_ready + 1 WHERE id = 'in-1'`)
	if err != nil {
		return err
	}
	if n, err := res.RowsAffected(); err != nil {
		return err
	} else if n == 0 {
		return delivery.ErrNotYet // rolled back, answered 503, sent again
	}
	if err := inbox.Note(ctx, tx, r.Source, r.ID, "applied"); err != nil {
		return err
	}
	fmt.Println("applied", r.Kind)
	return tx.Commit()
}

// migrate runs the package's migrations beside the program's own, each with a version
// table of its own.
func migrate(ctx context.Context, db *sql.DB) error {
	provider, err := goose.NewProvider(goose.DialectSQLite3, db, inbox.Migrations(), goose.WithTableName("inbox_schema"))
	if err != nil {
		return err
	}
	if _, err := provider.Up(ctx); err != nil {
		return err
	}
	_, err = db.ExecContext(ctx, `CREATE TABLE sandbox (id TEXT PRIMARY KEY, times_ready INTEGER NOT NULL);
		INSERT INTO sandbox VALUES ('in-1', 0)`)
	return err
}

// A sweep asks which sources have ended and purges what they sent, a few rows per
// transaction.
func ExamplePurge() {
	sweep := func(ctx context.Context, tx inbox.Tx, now time.Time, ended func(source string) bool) error {
		sources, err := inbox.Sources(ctx, tx, "", 100)
		if err != nil {
			return err
		}
		for _, source := range sources {
			if !ended(source) {
				continue
			}
			if _, err := inbox.Purge(ctx, tx, source, now.Add(-7*24*time.Hour), 100); err != nil {
				return err
			}
		}
		return nil
	}
	_ = sweep
}
