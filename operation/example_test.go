package operation_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/pressly/goose/v3"
	_ "modernc.org/sqlite"

	"github.com/holdfast-dev/holdfast/operation"
)

// exampleDB is a database of the caller's own, with the package's table beside the caller's.
func exampleDB(name string) *sql.DB {
	db, err := sql.Open("sqlite", "file:"+name+"?mode=memory&cache=shared&_txlock=immediate")
	if err != nil {
		log.Fatal(err)
	}
	db.SetMaxOpenConns(1)
	migrations, err := goose.NewProvider(goose.DialectSQLite3, db, operation.Migrations(), goose.WithTableName("operation_schema"))
	if err != nil {
		log.Fatal(err)
	}
	if _, err := migrations.Up(context.Background()); err != nil {
		log.Fatal(err)
	}
	if _, err := db.Exec(`CREATE TABLE vm (id TEXT PRIMARY KEY, state TEXT NOT NULL)`); err != nil {
		log.Fatal(err)
	}
	return db
}

// inTx is the caller's own way to run a transaction.
func inTx(db *sql.DB, fn func(tx *sql.Tx) error) error {
	tx, err := db.Begin()
	if err != nil {
		return err
	}
	if err := fn(tx); err != nil {
		return errors.Join(err, tx.Rollback())
	}
	return tx.Commit()
}

// One attempt, from the recorded intent to the recorded effect: begin and finish are transactions, and what happens
// between them holds no lock.
func Example() {
	ctx, db := context.Background(), exampleDB("one-attempt")
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	vm := operation.Resource{Kind: "vm", ID: "vm-1"}

	// Begin: the intent is durable before the first call that it leads to.
	var claim operation.Claim
	err := inTx(db, func(tx *sql.Tx) error {
		if _, err := tx.Exec(`INSERT INTO vm VALUES ('vm-1', 'CREATING')`); err != nil {
			return err
		}
		op, err := operation.Record(ctx, tx, now, operation.Intent{ID: "op-1", Resource: vm, Kind: "CREATE", Generation: 1,
			Deadline: now.Add(time.Minute)})
		if err != nil {
			return err
		}
		_, claim, err = operation.Take(ctx, tx, now, operation.Attempt{Operation: op.ID, Holder: operation.NewHolder("server-1")})
		return err
	})
	if err != nil {
		log.Fatal(err)
	}

	// Act: on a context that the caller's cancellation does not reach.
	runner := operation.NewRunner(operation.RunnerConfig{Clock: func() time.Time { return now }})
	err = runner.Do(ctx, claim, func(ctx context.Context) error {
		fmt.Println("creating", vm.ID, "with claim", claim.Number)

		// Finish: the effect and its completion are one transaction, and only the current claim gets through.
		closing, cancel := operation.Closing(ctx, 10*time.Second)
		defer cancel()
		return inTx(db, func(tx *sql.Tx) error {
			if _, err := tx.Exec(`UPDATE vm SET state = 'READY' WHERE id = 'vm-1'`); err != nil {
				return err
			}
			return operation.Finish(closing, tx, now, claim, operation.Outcome{State: operation.StateDone})
		})
	})
	fmt.Println("attempt:", err)
	// Output:
	// creating vm-1 with claim 1
	// attempt: <nil>
}

// A holder that was paused past its claim's end comes back after another one has taken over. Its write is refused, and
// the transaction that rests on it is rolled back.
func ExampleFinish_fenced() {
	ctx, db := context.Background(), exampleDB("fenced")
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	take := func(at time.Time) (claim operation.Claim) {
		if err := inTx(db, func(tx *sql.Tx) (err error) {
			_, claim, err = operation.Take(ctx, tx, at, operation.Attempt{Operation: "op-1", Holder: operation.NewHolder("server")})
			return err
		}); err != nil {
			log.Fatal(err)
		}
		return claim
	}
	if err := inTx(db, func(tx *sql.Tx) error {
		_, err := operation.Record(ctx, tx, now, operation.Intent{ID: "op-1", Resource: operation.Resource{Kind: "vm", ID: "vm-1"},
			Kind: "CREATE", Generation: 1, Deadline: now.Add(time.Minute)})
		return err
	}); err != nil {
		log.Fatal(err)
	}

	paused := take(now)
	later := now.Add(operation.MaxClaim)
	successor := take(later)
	for _, claim := range []operation.Claim{paused, successor} {
		err := inTx(db, func(tx *sql.Tx) error {
			return operation.Finish(ctx, tx, later, claim, operation.Outcome{State: operation.StateDone})
		})
		fmt.Printf("claim %d: fenced %v\n", claim.Number, errors.Is(err, operation.ErrFenced))
	}
	// Output:
	// claim 1: fenced true
	// claim 2: fenced false
}

// What a sweep does each time: carry on what nobody works on, through the same Take as everyone else.
func ExampleDue() {
	ctx, db := context.Background(), exampleDB("due")
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	err := inTx(db, func(tx *sql.Tx) error {
		for _, id := range []string{"vm-1", "vm-2"} {
			if _, err := operation.Record(ctx, tx, now, operation.Intent{ID: "op-" + id, Resource: operation.Resource{Kind: "vm", ID: id},
				Kind: "CREATE", Generation: 1, Deadline: now.Add(time.Minute)}); err != nil {
				return err
			}
		}
		_, _, err := operation.Take(ctx, tx, now, operation.Attempt{Operation: "op-vm-1", Holder: operation.NewHolder("server")})
		return err
	})
	if err != nil {
		log.Fatal(err)
	}
	for _, after := range []time.Duration{time.Second, time.Minute, 3 * time.Minute} {
		err := inTx(db, func(tx *sql.Tx) error {
			ops, err := operation.Due(ctx, tx, now.Add(after), operation.DueFilter{Idle: 30 * time.Second})
			for _, o := range ops {
				fmt.Println("after", after, "due:", o.ID)
			}
			return err
		})
		if err != nil {
			log.Fatal(err)
		}
	}
	// Output:
	// after 1m0s due: op-vm-2
	// after 3m0s due: op-vm-2
	// after 3m0s due: op-vm-1
}
