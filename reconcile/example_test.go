package reconcile_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log"
	"time"

	_ "modernc.org/sqlite"

	"github.com/holdfast-dev/holdfast/reconcile"
)

func exampleDB(name, schema string) *sql.DB {
	db, err := sql.Open("sqlite", "file:"+name+"?mode=memory&cache=shared")
	if err != nil {
		log.Fatal(err)
	}
	db.SetMaxOpenConns(1)
	if _, err := db.Exec(schema); err != nil {
		log.Fatal(err)
	}
	return db
}

// A sweep over a table of the caller's own: VMs that never reported that they are up are asked about, and failed only
// on the authority's word.
func Example() {
	db := exampleDB("sweep", `CREATE TABLE vm (id TEXT PRIMARY KEY, state TEXT);
		INSERT INTO vm VALUES ('vm-1', 'BOOTING'), ('vm-2', 'BOOTING'), ('vm-3', 'READY'), ('vm-4', 'BOOTING')`)
	hypervisor := func(id string) (running bool, err error) {
		if id == "vm-4" {
			return false, errors.New("no route to host")
		}
		return id == "vm-1", nil
	}
	resolve := func(ctx context.Context, id string) error {
		running, err := hypervisor(id)
		if err != nil {
			return err // unreachable is not gone: nothing is written
		}
		state := "FAILED"
		if running {
			state = "READY"
		}
		// Conditional, so that the report that comes after all and this sweep do not overwrite each other.
		_, err = db.ExecContext(ctx, `UPDATE vm SET state = $1 WHERE id = $2 AND state = 'BOOTING'`, state, id)
		return err
	}
	page := func(ctx context.Context, after string, limit int) (items []reconcile.Item, next string, err error) {
		rows, err := db.QueryContext(ctx, `SELECT id FROM vm WHERE state = 'BOOTING' AND id > $1 ORDER BY id LIMIT $2`, after, limit)
		if err != nil {
			return nil, "", err
		}
		defer func() { err = errors.Join(err, rows.Close()) }()
		for rows.Next() {
			var id string
			if err := rows.Scan(&id); err != nil {
				return items, "", err
			}
			items = append(items, reconcile.Item{Key: id, Act: func(ctx context.Context) error { return resolve(ctx, id) }})
			next = id
		}
		if len(items) < limit {
			next = ""
		}
		return items, next, rows.Err()
	}
	runner, err := reconcile.NewRunner(reconcile.Config{}, reconcile.Sweep{Name: "vm-booting", Every: time.Minute, Page: page})
	if err != nil {
		log.Fatal(err)
	}
	report, err := runner.RunOnce(context.Background(), "vm-booting") // a server calls Run(ctx)
	fmt.Println("seen", report.Seen, "acted", report.Acted, "failed", report.Failed, err)
	fmt.Println(report.Err())
	rows, err := db.Query(`SELECT id, state FROM vm ORDER BY id`)
	if err != nil {
		log.Fatal(err)
	}
	for rows.Next() {
		var id, state string
		if err := rows.Scan(&id, &state); err != nil {
			log.Fatal(err)
		}
		fmt.Println(id, state)
	}
	if err := errors.Join(rows.Err(), rows.Close()); err != nil {
		log.Fatal(err)
	}
	// Output:
	// seen 3 acted 2 failed 1 <nil>
	// item vm-4: no route to host
	// vm-1 READY
	// vm-2 FAILED
	// vm-3 READY
	// vm-4 BOOTING
}

// The port of a VM is reported by its host. Where the report has not come, the host is asked, and the answer is stored
// if the VM was not replaced meanwhile.
func ExampleRepair() {
	db := exampleDB("repair", `CREATE TABLE vm (id TEXT PRIMARY KEY, generation BIGINT, port BIGINT, port_generation BIGINT);
		INSERT INTO vm VALUES ('vm-1', 3, 8080, 2)`)
	hostUp := false
	ports := &reconcile.Repair[string, int]{
		Load: func(ctx context.Context, id string) (k reconcile.Known[int], err error) {
			var generation int64
			err = db.QueryRowContext(ctx, `SELECT port, port_generation, generation FROM vm WHERE id = $1`, id).
				Scan(&k.Value, &generation, &k.Generation)
			k.Present, k.Current = k.Value != 0, generation == k.Generation
			return k, err
		},
		Ask: func(context.Context, string, int64) (int, error) {
			fmt.Println("asking the host")
			if !hostUp {
				return 0, errors.New("no route to host")
			}
			return 9090, nil
		},
		Store: func(ctx context.Context, id string, read int64, port int) (bool, error) {
			res, err := db.ExecContext(ctx, `UPDATE vm SET port = $1, port_generation = $2 WHERE id = $3 AND generation = $2`, port, read, id)
			if err != nil {
				return false, err
			}
			n, err := res.RowsAffected()
			return n == 1, err
		},
	}
	for range 2 {
		fmt.Println(ports.Get(context.Background(), "vm-1"))
		hostUp = true
	}
	fmt.Println(ports.Get(context.Background(), "vm-1"))
	// Output:
	// asking the host
	// {8080 true} <nil>
	// asking the host
	// {9090 false} <nil>
	// {9090 false} <nil>
}

// A host answers with what runs on it; the database says what should.
func ExamplePlan() {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	hour := now.Add(-time.Hour)
	comparison := reconcile.Comparison{
		Reading: reconcile.Reading{Began: now.Add(-2 * time.Second), Ended: now.Add(-time.Second), Complete: true,
			Observed: []reconcile.Observed{{Key: "vm-1", Since: hour}, {Key: "stray", Since: hour}, {Key: "new", Since: now.Add(-10 * time.Second)}}},
		RecordedAt: now,
		Recorded:   []reconcile.Recorded{{Key: "vm-1", Since: hour}, {Key: "vm-2", Since: hour}},
	}
	actions := reconcile.Plan(comparison, now, reconcile.Limits{Grace: 5 * time.Minute})
	fmt.Println("gone:", actions.Gone, "destroy:", actions.Destroy, "too young:", actions.Waiting)

	comparison.Reading = reconcile.Reading{Err: errors.New("no route to host")}
	actions = reconcile.Plan(comparison, now, reconcile.Limits{Grace: 5 * time.Minute})
	fmt.Println("gone:", actions.Gone, "because:", actions.Blind)
	// Output:
	// gone: [vm-2] destroy: [stray] too young: [new]
	// gone: [] because: the authority could not be read: no route to host
}
