package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime/debug"
	"strings"
	"syscall"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/delivery/outbox"
	"github.com/holdfast-dev/holdfast/fleet"
	"github.com/holdfast-dev/holdfast/orchestrator"
	"github.com/holdfast-dev/holdfast/reconcile"
	"github.com/holdfast-dev/holdfast/store"
)

const (
	suspended = 50_000
	// eachLimit is the most that one may cost the control plane's memory.
	eachLimit = 4 << 10
)

// suspendedMemory is what 50,000 suspended sandboxes add to the memory of a process
// with an orchestrator and a fleet service that has swept them, after a collection.
// Hosts are elsewhere.
func suspendedMemory(ctx context.Context, o options) ([]line, error) {
	var each []float64
	for range o.rounds {
		with, err := heldWith(ctx, suspended)
		if err != nil {
			return nil, err
		}
		without, err := heldWith(ctx, 0)
		if err != nil {
			return nil, err
		}
		each = append(each, float64(with-without)/suspended)
	}
	m := median(each)
	return []line{{what: "memory of the control plane per suspended sandbox, of 50,000", measured: fmt.Sprintf("%.0f bytes", m),
		against: fmt.Sprintf("%d bytes", eachLimit), ratio: m / eachLimit, goal: "< 1.00", met: m < eachLimit}}, nil
}

// heldWith is the resident memory of such a process, in bytes: this program, started
// again on databases that were made before.
func heldWith(ctx context.Context, n int) (size int64, err error) {
	err = engine{name: "SQLite"}.with(ctx, func(p *place) error {
		if err := fillSuspended(ctx, p, n); err != nil {
			return err
		}
		self, err := os.Executable()
		if err != nil {
			return err
		}
		cmd := exec.CommandContext(ctx, self, "-held", p.dir, "-suspended", fmt.Sprint(n))
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		var complaint strings.Builder
		cmd.Stderr = &complaint
		out, err := cmd.Output()
		if err != nil {
			return fmt.Errorf("measure memory: %w: %s", err, complaint.String())
		}
		_, err = fmt.Sscan(string(out), &size)
		return err
	})
	return size, err
}

// plane is an orchestrator and a fleet service in one process, over a host that has
// every copy, suspended, and the template.
type plane struct {
	dbs          []store.DB
	fleet        *fleet.Service
	orchestrator *orchestrator.Service
}

func openPlane(ctx context.Context, p *place, host stubHost) (_ *plane, err error) {
	c := &plane{}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.close())
		}
	}()
	for _, party := range []struct {
		name       string
		migrations []store.Migrations
	}{{"orchestrator", orchestrator.Migrations()}, {"fleet", fleet.Migrations()}} {
		db, err := p.open(ctx, party.name, party.migrations...)
		if err != nil {
			return nil, err
		}
		c.dbs = append(c.dbs, db)
	}
	if c.fleet, err = newFleet(ctx, c.dbs[1], host); err != nil {
		return nil, err
	}
	c.orchestrator, err = newOrchestrator(ctx, c.dbs[0], c.fleet)
	return c, err
}

// newFleet is a fleet service whose one host is a stub.
func newFleet(ctx context.Context, db store.DB, host stubHost) (*fleet.Service, error) {
	s, err := fleet.New(fleet.Config{DB: db, Cluster: "bench", Holder: "bench", Logger: silent(),
		Dial:   func(string) holdfast.HostService { return host },
		SendUp: func(context.Context, outbox.Row) error { return nil },
	})
	if err != nil {
		return nil, err
	}
	if err := s.Join(ctx); err != nil {
		return nil, err
	}
	return s, s.Heartbeat(ctx, host.heartbeat())
}

func (c *plane) close() error {
	var errs []error
	if c.orchestrator != nil {
		errs = append(errs, c.orchestrator.Close())
	}
	for _, db := range c.dbs {
		errs = append(errs, db.Close())
	}
	return errors.Join(errs...)
}

// fillSuspended makes one suspended sandbox and n copies of it.
func fillSuspended(ctx context.Context, p *place, n int) (err error) {
	c, err := openPlane(ctx, p, newStubHost())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.close()) }()
	sb, err := c.orchestrator.CreateSandbox(ctx, admin(), createInput("first", 0, 0))
	if err == nil {
		sb, err = c.orchestrator.SuspendSandbox(ctx, admin(), holdfast.MutateSandbox{ID: sb.ID})
	}
	if err == nil {
		err = p.copySandboxes(ctx, c.dbs[0], string(sb.ID), n)
	}
	if err == nil {
		err = p.copyInstances(ctx, c.dbs[1], string(sb.Instance), n)
	}
	return err
}

// held runs every sweep twice over the databases in a directory, gives back what it
// can, and prints this process's resident memory.
func held(ctx context.Context, dir string, n int) (err error) {
	p := &place{engine: engine{name: "SQLite"}, dir: dir}
	host := newStubHost()
	if host.suspended, err = instancesIn(ctx, p); err != nil {
		return err
	}
	c, err := openPlane(ctx, p, host)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.close()) }()
	for range 2 {
		if _, err := c.sweep(ctx); err != nil {
			return err
		}
	}
	left, err := number(ctx, c.dbs[0], `SELECT COUNT(*) FROM sandbox WHERE state = 'SUSPENDED'`)
	if err == nil && left != int64(n)+1 {
		err = fmt.Errorf("%d sandboxes are suspended, want %d", left, n+1)
	}
	if err != nil {
		return err
	}
	for range 2 {
		debug.FreeOSMemory()
		if err := pause(ctx, 100*time.Millisecond); err != nil {
			return err
		}
	}
	size, err := residentOf(os.Getpid())
	if err == nil {
		fmt.Println(size)
	}
	return err
}

// sweep runs every sweep of both parties once, and tells which found something to do.
func (c *plane) sweep(ctx context.Context) (acted []string, err error) {
	for _, sweeps := range [][]reconcile.Sweep{c.fleet.Sweeps(), c.orchestrator.Sweeps()} {
		runner, err := reconcile.NewRunner(reconcile.Config{Logger: silent()}, sweeps...)
		if err != nil {
			return nil, err
		}
		for _, name := range runner.Names() {
			report, err := runner.RunOnce(ctx, name)
			if err != nil || report.Failed > 0 {
				return nil, errors.Join(err, report.Err())
			}
			if report.Acted > 0 {
				acted = append(acted, name)
			}
		}
	}
	return acted, nil
}

// instancesIn lists the instances of a fleet's database.
func instancesIn(ctx context.Context, p *place) (ids []holdfast.InstanceID, err error) {
	db, err := p.open(ctx, "fleet", fleet.Migrations()...)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	err = db.View(ctx, func(tx store.Tx) error {
		list, err := column(ctx, tx, `SELECT id FROM instance ORDER BY id`)
		for _, id := range list {
			ids = append(ids, holdfast.InstanceID(id))
		}
		return err
	})
	return ids, err
}
