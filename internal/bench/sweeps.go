package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/fleet"
	"github.com/holdfast-dev/holdfast/orchestrator"
	"github.com/holdfast-dev/holdfast/reconcile"
	"github.com/holdfast-dev/holdfast/store"
)

const (
	manyRows = 1_000_000
	fewRows  = 10_000
	overdue  = 1_000
)

// sweeps times what is done about 1,000 overdue among a million rows and among ten
// thousand: lifetimes that are over, at the orchestrator, until each of the 1,000 is
// deleted; and boots past their deadline, at the fleet, until each is known.
func sweeps(e engine) bench {
	return func(ctx context.Context, o options) (lines []line, err error) {
		for _, s := range []struct {
			what string
			fill func(context.Context, *place, int) (crowd, error)
		}{{"lifetimes that are over, deleted", fillOrchestrator}, {"boots past their deadline, asked about", fillFleet}} {
			l, err := crowds(ctx, e, o.rounds, s.fill)
			if err != nil {
				return nil, err
			}
			l.what = fmt.Sprintf("1,000 %s, among 1,000,000 rows, %s", s.what, e.name)
			lines = append(lines, l)
		}
		return lines, nil
	}
}

// crowd is many rows, some of which can be made overdue and dealt with.
type crowd struct {
	db    store.DB
	close func() error
	arm   func(ctx context.Context, low, high int) error // copies low to high are overdue
	find  func(ctx context.Context) (int, error)         // reads what is overdue, and does nothing about it
	sweep func(ctx context.Context) error                // until nothing is
}

// crowds times the sweep among many rows and among few, in turns.
func crowds(ctx context.Context, e engine, rounds int, fill func(context.Context, *place, int) (crowd, error)) (l line, err error) {
	var all [2]crowd
	for i, n := range []int{manyRows, fewRows} {
		p, err := e.place(ctx)
		if err != nil {
			return l, err
		}
		defer func() { err = errors.Join(err, p.close()) }()
		if all[i], err = fill(ctx, p, n); err != nil {
			return l, err
		}
		defer func() { err = errors.Join(err, all[i].close(), all[i].db.Close()) }()
		if err := p.settle(ctx); err != nil {
			return l, err
		}
	}
	var swept, found [2][]float64
	for round := range min(rounds, fewRows/overdue-1) + 1 {
		for i, c := range all {
			s, f, err := c.round(ctx, round*overdue+1)
			if err != nil {
				return l, err
			}
			if round > 0 { // the first warms up
				swept[i], found[i] = append(swept[i], s), append(found[i], f)
			}
		}
	}
	many, few := median(swept[0]), median(swept[1])
	foundMany, foundFew := median(found[0]), median(found[1])
	return line{measured: fmt.Sprintf("%.2f s (found in %.1f ms)", many, 1000*foundMany),
		against: fmt.Sprintf("the same among 10,000, %.2f s (found in %.1f ms)", few, 1000*foundFew),
		ratio:   many / few, goal: "<= 1.50", met: many <= 1.5*few}, nil
}

// round makes copies from low on overdue and tells how many seconds their sweep
// took, and finding them alone.
func (c crowd) round(ctx context.Context, low int) (swept, found float64, err error) {
	if err := c.arm(ctx, low, low+overdue-1); err != nil {
		return 0, 0, err
	}
	began := time.Now()
	n, err := c.find(ctx)
	found = time.Since(began).Seconds()
	if err == nil && n != overdue {
		err = fmt.Errorf("%d of %d are found", n, overdue)
	}
	if err != nil {
		return 0, 0, err
	}
	began = time.Now()
	err = c.sweep(ctx)
	return time.Since(began).Seconds(), found, err
}

// findAll reads the pages of one of some sweeps and counts their items.
func findAll(ctx context.Context, sweeps []reconcile.Sweep, name string) (n int, err error) {
	for _, s := range sweeps {
		if s.Name != name {
			continue
		}
		for after := ""; ; {
			items, next, err := s.Page(ctx, after, 100)
			n += len(items)
			if err != nil || next == "" {
				return n, err
			}
			after = next
		}
	}
	return 0, fmt.Errorf("there is no sweep %s", name)
}

// fillOrchestrator is an orchestrator with n READY sandboxes.
func fillOrchestrator(ctx context.Context, p *place, n int) (c crowd, err error) {
	if c.db, err = p.open(ctx, "orchestrator", orchestrator.Migrations()...); err != nil {
		return c, err
	}
	s, err := newOrchestrator(ctx, c.db, stubFleet{})
	if err != nil {
		return c, err
	}
	c.close = s.Close
	sb, err := s.CreateSandbox(ctx, admin(), createInput("first", 0, 0))
	if err == nil {
		err = p.copySandboxes(ctx, c.db, string(sb.ID), n)
	}
	if err != nil {
		return c, err
	}
	runner, err := reconcile.NewRunner(reconcile.Config{Logger: silent()}, s.Sweeps()...)
	c.arm = func(ctx context.Context, low, high int) error {
		return execute(ctx, c.db, `UPDATE sandbox SET expires_at = $1 WHERE id >= $2 AND id <= $3`,
			time.Now().Add(-time.Second).UnixMicro(), numbered("sb", low), numbered("sb", high))
	}
	c.find = func(ctx context.Context) (int, error) { return findAll(ctx, s.Sweeps(), orchestrator.SweepExpiry) }
	c.sweep = func(ctx context.Context) error {
		for _, name := range []string{orchestrator.SweepExpiry, orchestrator.SweepOperations} {
			if report, err := runner.RunOnce(ctx, name); err != nil || report.Failed > 0 {
				return errors.Join(err, report.Err())
			}
		}
		return c.drained(ctx, `SELECT COUNT(*) FROM operation WHERE state = 'PENDING'`)
	}
	return c, err
}

// drained waits until a query counts nothing.
func (c crowd) drained(ctx context.Context, query string) error {
	for {
		n, err := number(ctx, c.db, query)
		if err != nil || n == 0 {
			return err
		}
		if err := pause(ctx, time.Millisecond); err != nil {
			return err
		}
	}
}

// fillFleet is a fleet with n RUNNING instances on one host.
func fillFleet(ctx context.Context, p *place, n int) (c crowd, err error) {
	if c.db, err = p.open(ctx, "fleet", fleet.Migrations()...); err != nil {
		return c, err
	}
	c.close = func() error { return nil }
	s, err := newFleet(ctx, c.db, newStubHost())
	if err != nil {
		return c, err
	}
	instance := holdfast.IDs{}.New(holdfast.PrefixInstance)
	_, err = s.EnsureInstance(ctx, holdfast.Level{Cluster: "bench", Instance: holdfast.InstanceID(instance), Incarnation: 1, Generation: 1,
		Desired: holdfast.DesiredRunning, MintedAt: time.Now(), Spec: &holdfast.InstanceSpec{Owner: numbered("sb", 0), Image: "base"}})
	if err == nil {
		err = p.copyInstances(ctx, c.db, instance, n)
	}
	c.arm = func(ctx context.Context, low, high int) error {
		return execute(ctx, c.db, `UPDATE instance SET state = 'BOOTING', known = 'BOOTING', settled = 0, due_at = $1, revision = revision + 1
			WHERE id >= $2 AND id <= $3`, time.Now().Add(-time.Second).UnixMicro(), numbered("in", low), numbered("in", high))
	}
	c.find = func(ctx context.Context) (int, error) { return findAll(ctx, s.Sweeps(), fleet.SweepOverdue) }
	c.sweep = func(ctx context.Context) error {
		report, err := s.Sweep(ctx, fleet.SweepOverdue)
		if err != nil || report.Failed > 0 {
			return errors.Join(err, report.Err())
		}
		return c.drained(ctx, `SELECT COUNT(*) FROM instance WHERE due_at > 0`)
	}
	return c, err
}
