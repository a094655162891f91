package outbox_test

import (
	"context"
	"database/sql"
	"errors"
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
	"github.com/holdfast-dev/holdfast/delivery/outbox"
)

// A change and the event that reports it are one transaction; a dispatcher sends the
// event until the receiver has it.
func Example() {
	dir, err := os.MkdirTemp("", "outbox")
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
	provider, err := goose.NewProvider(goose.DialectSQLite3, db, outbox.Migrations(), goose.WithTableName("outbox_schema"))
	if err != nil {
		log.Fatal(err)
	}
	if _, err := provider.Up(ctx); err != nil {
		log.Fatal(err)
	}

	// The receiver is down for its first two calls.
	calls := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if calls++; calls <= 2 {
			http.Error(w, "starting", http.StatusServiceUnavailable)
			return
		}
		fmt.Println("received", r.Header.Get(delivery.HeaderID))
		w.WriteHeader(http.StatusNoContent)
	}))
	defer server.Close()

	update := func(ctx context.Context, fn func(outbox.Tx) error) error {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		if err := fn(tx); err != nil {
			return errors.Join(err, tx.Rollback())
		}
		return tx.Commit()
	}
	received := make(chan struct{})
	sender := delivery.Sender{Secret: []byte("shared with the receiver"), URL: server.URL}
	dispatcher, err := outbox.New(outbox.Config{
		Update: update, View: update, Holder: "replica 1, started 12:00",
		Policy: func(string) outbox.Policy { return outbox.Policy{Base: time.Millisecond} },
		Send: func(ctx context.Context, row outbox.Row) error {
			// One attempt: the outbox is what tries again.
			err := sender.Attempt(ctx, delivery.Message{ID: row.ID, Kind: row.Kind, Body: row.Body})
			if err == nil {
				close(received)
			}
			return err
		},
	})
	if err != nil {
		log.Fatal(err)
	}

	err = update(ctx, func(tx outbox.Tx) error {
		// The change itself goes here, in the same transaction.
		return outbox.Enqueue(ctx, tx, outbox.Row{
			ID:          delivery.DeriveID("instance.exited", "in-1", 1, "exit"),
			Destination: "orchestrator",
			Kind:        "instance.exited",
			Body:        []byte(`{"exit_code": 137}`),
		}, time.Now())
	})
	if err != nil {
		log.Fatal(err)
	}
	running, stop := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		dispatcher.Run(running)
	}()
	<-received
	stop()
	<-done
	fmt.Println("after", calls, "calls")
	// Output:
	// received ev-ert61g4h1smsqrn6m34v81x1hfgww9vr
	// after 3 calls
}
