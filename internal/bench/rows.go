package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/holdfast-dev/holdfast/store"
)

// Rows by the hundred thousand are copies, made by the database, of what one real
// create left: whatever a table's columns are, only those that name things differ.

// copied is one table's rows of a template. Of set, each column gets an expression
// over s.n, the copy's number, in place of the template's value.
type copied struct {
	table string
	where string // finds the template's row; $3 is key
	key   string
	set   map[string]string
}

// chunk is how many copies one transaction makes.
const chunk = 20_000

// idOf is the id with a number, by default that of the copy, s.n: digits are letters of ids too.
func (e engine) idOf(prefix string, number ...string) string {
	n := strings.Join(append(number, "s.n")[:1], "")
	if e.postgres != nil {
		return "'" + prefix + "-' || lpad(CAST(" + n + " AS TEXT), 26, '0')"
	}
	return "'" + prefix + "-' || printf('%026d', " + n + ")"
}

// numbered is the same in Go.
func numbered(prefix string, n int) string { return fmt.Sprintf("%s-%026d", prefix, n) }

// copy makes copies 1 to n of a template.
func (e engine) copy(ctx context.Context, db store.DB, n int, all ...copied) error {
	for _, c := range all {
		columns, err := columnsOf(ctx, db, c.table)
		if err != nil {
			return err
		}
		from := slices.Clone(columns)
		for column, expression := range c.set {
			i := slices.Index(columns, column)
			if i < 0 {
				return fmt.Errorf("table %s has no column %s", c.table, column)
			}
			from[i] = expression
		}
		query := fmt.Sprintf(`WITH RECURSIVE s(n) AS (SELECT CAST($1 AS BIGINT) UNION ALL SELECT n + 1 FROM s WHERE n < $2)
			INSERT INTO %s (%s) SELECT %s FROM s, %s WHERE %s`, c.table, strings.Join(columns, ", "), strings.Join(from, ", "), c.table, c.where)
		for low := 1; low <= n; low += chunk {
			if err := execute(ctx, db, query, low, min(n, low+chunk-1), c.key); err != nil {
				return fmt.Errorf("copy rows of %s: %w", c.table, err)
			}
		}
	}
	return nil
}

func columnsOf(ctx context.Context, db store.DB, table string) (columns []string, err error) {
	err = db.View(ctx, func(tx store.Tx) (err error) {
		rows, err := tx.QueryContext(ctx, `SELECT * FROM `+table+` WHERE 1 = 0`)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, rows.Close(), rows.Err()) }()
		columns, err = rows.Columns()
		return err
	})
	return columns, err
}

// copySandboxes makes copies of a sandbox: its row, its request id, its journal, and
// what its project counts.
func (e engine) copySandboxes(ctx context.Context, db store.DB, sandbox string, n int) error {
	id := e.idOf("sb")
	all := []copied{
		{"sandbox", "id = $3", sandbox, map[string]string{"id": id, "instance": e.idOf("in")}},
		{"request", "resource = $3", sandbox, map[string]string{"request_id": id, "resource": id}},
	}
	journal, err := journalOf(ctx, db, sandbox)
	if err != nil {
		return err
	}
	for i, op := range journal {
		number := fmt.Sprintf("s.n * %d + %d", len(journal), i)
		all = append(all, copied{"operation", "id = $3", op, map[string]string{"id": e.idOf("op", number), "resource_id": id}})
	}
	if err := e.copy(ctx, db, n, all...); err != nil {
		return err
	}
	return execute(ctx, db, `UPDATE quota_shard SET
		sandboxes = (SELECT COUNT(*) FROM sandbox s WHERE s.project = quota_shard.project AND s.quota_shard = quota_shard.shard),
		cpu_millis = (SELECT COALESCE(SUM(s.cpu_millis), 0) FROM sandbox s WHERE s.project = quota_shard.project AND s.quota_shard = quota_shard.shard),
		memory_bytes = (SELECT COALESCE(SUM(s.memory_bytes), 0) FROM sandbox s WHERE s.project = quota_shard.project AND s.quota_shard = quota_shard.shard)`)
}

// journalOf lists a sandbox's operations, the oldest first.
func journalOf(ctx context.Context, db store.DB, sandbox string) (ids []string, err error) {
	err = db.View(ctx, func(tx store.Tx) (err error) {
		ids, err = column(ctx, tx, `SELECT id FROM operation WHERE resource_id = $1 ORDER BY id`, sandbox)
		return err
	})
	return ids, err
}

// column reads the one column of a query.
func column(ctx context.Context, tx store.Tx, query string, args ...any) (values []string, err error) {
	rows, err := tx.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rows.Close(), rows.Err()) }()
	for rows.Next() {
		var v string
		if err := rows.Scan(&v); err != nil {
			return nil, err
		}
		values = append(values, v)
	}
	return values, nil
}

// copyInstances makes copies of an instance, in room of their own on its host.
func (e engine) copyInstances(ctx context.Context, db store.DB, instance string, n int) error {
	err := e.copy(ctx, db, n, copied{"instance", "id = $3", instance, map[string]string{"id": e.idOf("in"), "owner": e.idOf("sb")}})
	if err != nil {
		return err
	}
	return execute(ctx, db, `UPDATE host SET
		used_instances = (SELECT COUNT(*) FROM instance i WHERE i.host = host.id AND i.held = 1),
		used_cpu_millis = (SELECT COALESCE(SUM(i.cpu_millis), 0) FROM instance i WHERE i.host = host.id AND i.held = 1),
		used_memory_bytes = (SELECT COALESCE(SUM(i.memory_bytes), 0) FROM instance i WHERE i.host = host.id AND i.held = 1)`)
}

// settle lets nothing of the filling run on beside a measurement: what was written is
// on the disk, and PostgreSQL has looked at the new rows, as its autovacuum would
// within a minute.
func (p *place) settle(ctx context.Context) error {
	if p.postgres != nil {
		if err := p.postgres.Exec(ctx, p.db, "ANALYZE", "CHECKPOINT"); err != nil {
			return err
		}
	}
	unix.Sync()
	return nil
}
