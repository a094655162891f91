package testenv

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/holdfast-dev/holdfast/store"
)

// Plans is a database that asks it for the plan of every statement that is run,
// before it is: so that a test can say that a sweep reads by its index.
type Plans struct {
	store.DB

	mu    sync.Mutex
	scans map[string]string // the table that was read from end to end: by which statement, with the plan
}

// Scanned are the tables, by name, that a statement since the last call read from
// end to end, with one such statement each and its plan.
func (p *Plans) Scanned() map[string]string {
	p.mu.Lock()
	defer p.mu.Unlock()
	scans := p.scans
	p.scans = nil
	return scans
}

// Update is store.DB's.
func (p *Plans) Update(ctx context.Context, fn func(store.Tx) error) error {
	return p.DB.Update(ctx, func(tx store.Tx) error { return fn(planned{tx, p}) })
}

// View is store.DB's.
func (p *Plans) View(ctx context.Context, fn func(store.Tx) error) error {
	return p.DB.View(ctx, func(tx store.Tx) error { return fn(planned{tx, p}) })
}

type planned struct {
	store.Tx
	plans *Plans
}

func (t planned) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	if err := t.explain(ctx, query, args); err != nil {
		return nil, err
	}
	return t.Tx.ExecContext(ctx, query, args...)
}

func (t planned) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	if err := t.explain(ctx, query, args); err != nil {
		return nil, err
	}
	return t.Tx.QueryContext(ctx, query, args...)
}

func (t planned) QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row {
	// A failure shows in the statement itself: the transaction refuses everything after it.
	if err := t.explain(ctx, query, args); err != nil {
		return t.Tx.QueryRowContext(ctx, "SELECT 1 FROM plan_failed_"+fmt.Sprint(len(args)))
	}
	return t.Tx.QueryRowContext(ctx, query, args...)
}

func (t planned) explain(ctx context.Context, query string, args []any) (err error) {
	word, scanned := "EXPLAIN QUERY PLAN ", scannedBySQLite
	if t.ForUpdate() != "" {
		word, scanned = "EXPLAIN ", scannedByPostgres
	}
	rows, err := t.Tx.QueryContext(ctx, word+query, args...)
	if err != nil {
		return fmt.Errorf("plan of %s: %w", query, err)
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	columns, err := rows.Columns()
	if err != nil {
		return err
	}
	var plan []string
	for rows.Next() {
		line := make([]any, len(columns))
		for i := range line {
			line[i] = new(any)
		}
		if err := rows.Scan(line...); err != nil {
			return err
		}
		plan = append(plan, fmt.Sprint(*line[len(line)-1].(*any)))
	}
	t.plans.note(scanned(plan), query, plan)
	return rows.Err()
}

func (p *Plans) note(tables []string, query string, plan []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, table := range tables {
		if p.scans == nil {
			p.scans = map[string]string{}
		}
		p.scans[table] = strings.Join(strings.Fields(query), " ") + "\n\t" + strings.Join(plan, "\n\t")
	}
}

// scannedBySQLite reads "SCAN sandbox", also by an index, for a whole one.
func scannedBySQLite(plan []string) (tables []string) {
	scan := regexp.MustCompile(`^SCAN (\w+)`)
	for _, line := range plan {
		if m := scan.FindStringSubmatch(line); m != nil && m[1] != "CONSTANT" {
			tables = append(tables, m[1])
		}
	}
	return tables
}

// scannedByPostgres reads a sequential scan, and one of an index without a
// condition, for a whole one.
func scannedByPostgres(plan []string) (tables []string) {
	whole := regexp.MustCompile(`Seq Scan on (\w+)`)
	index := regexp.MustCompile(`(?:Index Scan|Index Only Scan|Bitmap Index Scan).* on (\w+)`)
	for i, line := range plan {
		if m := whole.FindStringSubmatch(line); m != nil {
			tables = append(tables, m[1])
		}
		m := index.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		below := plan[i+1:]
		if end := slices.IndexFunc(below, func(l string) bool { return strings.Contains(l, "->") }); end >= 0 {
			below = below[:end]
		}
		if !slices.ContainsFunc(below, func(l string) bool { return strings.Contains(l, "Index Cond:") }) {
			tables = append(tables, m[1])
		}
	}
	return tables
}
