package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/internal/server"
	"github.com/holdfast-dev/holdfast/rpc"
)

const (
	clients    = 32
	perClient  = 64
	allCreates = clients * perClient
	warmUp     = 8 // creates of each client before
)

// createFigures is one round's, all of the same database.
type createFigures struct {
	called, api, one float64 // creates a second: called in process, through the API, called for one project
	cpu              float64 // microseconds of one that is called
	commits          [2]float64
	floor, floorCPU  float64 // as many bare commits
	dbos             float64
}

// creates times idempotent creates on the simulated runtime by 32 clients, with 32
// projects and 32 hosts, against as many bare commits as one create makes and
// against a one-step workflow of DBOS, each on the same database in turn.
func creates(e engine, againstDBOS float64) bench {
	return func(ctx context.Context, o options) ([]line, error) {
		server.SpareProcessor() // as holdfast serve does
		var all []createFigures
		for range o.rounds {
			f, err := createRound(ctx, e, o.binaries)
			if err != nil {
				return nil, err
			}
			all = append(all, f)
		}
		m := func(of func(createFigures) float64) float64 { return medianOf(all, of) }
		called, commits := m(func(f createFigures) float64 { return f.called }), m(func(f createFigures) float64 { return f.commits[0] + f.commits[1] })
		api, one := m(func(f createFigures) float64 { return f.api }), m(func(f createFigures) float64 { return f.one })
		floor, dbos := m(func(f createFigures) float64 { return f.floor }), m(func(f createFigures) float64 { return f.dbos })
		what := "idempotent creates, " + e.name + ", 32 clients, projects and hosts"
		return []line{{
			what:     fmt.Sprintf("%s (%.1f commits each)", what, commits),
			measured: fmt.Sprintf("%.0f/s (%.0f us of CPU each; one project %.0f/s)", called, m(func(f createFigures) float64 { return f.cpu }), one),
			against:  fmt.Sprintf("as many bare commits, %.0f/s (%.0f us)", floor, m(func(f createFigures) float64 { return f.floorCPU })),
			ratio:    called / floor, goal: ">= 0.60, <= 5 commits", met: called >= 0.6*floor && math.Round(commits) <= 5,
		}, {
			what:     "the same",
			measured: fmt.Sprintf("%.0f/s", called),
			against:  fmt.Sprintf("one-step workflows of DBOS, %.0f/s", dbos),
			ratio:    called / dbos, goal: fmt.Sprintf(">= %.2f", againstDBOS), met: called >= againstDBOS*dbos,
		}, {
			what:     "the same through the API, HTTP on our side alone",
			measured: fmt.Sprintf("%.0f/s", api),
			against:  fmt.Sprintf("one-step workflows of DBOS, %.0f/s", dbos),
			ratio:    api / dbos, met: true,
		}}, nil
	}
}

func createRound(ctx context.Context, e engine, binaries string) (f createFigures, err error) {
	err = e.with(ctx, func(p *place) error { return f.ours(ctx, p) })
	if err == nil {
		err = e.with(ctx, func(p *place) error { return f.bare(ctx, p) })
	}
	if err == nil {
		err = e.with(ctx, func(p *place) error { return f.theirs(ctx, p, binaries) })
	}
	return f, err
}

// ours times creates three ways.
func (f *createFigures) ours(ctx context.Context, p *place) (err error) {
	d, err := deploy(ctx, p, clients, clients)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.stop(ctx)) }()
	called := func(word string, caller func(int) holdfast.Caller) func(int, int) error {
		return func(client, i int) error {
			_, err := d.services().Sandboxes.CreateSandbox(ctx, caller(client), createInput(word, client, i))
			return err
		}
	}
	own := func(client int) holdfast.Caller { return d.callers[client] }
	first := func(int) holdfast.Caller { return d.callers[0] }
	api := make([]rpc.Services, clients)
	for i := range api {
		api[i] = rpc.Dial(d.client, d.servers[0].URL(), d.keys[i])
	}
	through := func(client, i int) error {
		_, err := api[client].Sandboxes.CreateSandbox(ctx, holdfast.Caller{}, createInput("api", client, i))
		return err
	}
	if _, err := timed(warmUp, called("warm", own)); err != nil {
		return err
	}
	before, err := updates(ctx, d.servers[0].URL())
	if err != nil {
		return err
	}
	spent := cpuTime()
	if f.called, err = timed(perClient, called("run", own)); err != nil {
		return err
	}
	f.cpu = float64((cpuTime() - spent).Microseconds()) / allCreates
	after, err := updates(ctx, d.servers[0].URL())
	if err != nil {
		return err
	}
	for i, party := range []string{"orchestrator", "fleet"} {
		f.commits[i] = (after[party] - before[party]) / allCreates
	}
	if f.one, err = timed(perClient, called("one", first)); err != nil {
		return err
	}
	f.api, err = timed(perClient, through)
	return err
}

func createInput(word string, client, i int) holdfast.CreateSandbox {
	return holdfast.CreateSandbox{RequestID: fmt.Sprint(word, "-", client, "-", i), Environment: "base"}
}

// timed runs work n times for each of the clients at once, and tells how often a second.
func timed(n int, work func(client, i int) error) (perSecond float64, err error) {
	began := time.Now()
	err = inParallel(clients, func(client int) error {
		for i := range n {
			if err := work(client, i); err != nil {
				return err
			}
		}
		return nil
	})
	return float64(clients*n) / time.Since(began).Seconds(), err
}

func inParallel(n int, work func(i int) error) error {
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { errs[i] = work(i) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// bare times as many one-row commits as the creates made, on two databases like theirs.
func (f *createFigures) bare(ctx context.Context, p *place) (err error) {
	var each []func(id string) error
	for i, party := range []string{"orchestrator", "fleet"} {
		db, err := p.open(ctx, party)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, db.Close()) }()
		if err := execute(ctx, db, `CREATE TABLE bare (id TEXT PRIMARY KEY, value TEXT NOT NULL)`); err != nil {
			return err
		}
		for c := range int(f.commits[i] + 0.5) {
			each = append(each, func(id string) error {
				return execute(ctx, db, `INSERT INTO bare (id, value) VALUES ($1, $2)`, id+"-"+strconv.Itoa(c), "value")
			})
		}
	}
	work := func(word string) func(int, int) error {
		return func(client, i int) error {
			id := fmt.Sprint(word, "-", client, "-", i)
			for _, commit := range each {
				if err := commit(id); err != nil {
					return err
				}
			}
			return nil
		}
	}
	if _, err := timed(warmUp, work("warm")); err != nil {
		return err
	}
	spent := cpuTime()
	f.floor, err = timed(perClient, work("run"))
	f.floorCPU = float64((cpuTime() - spent).Microseconds()) / allCreates
	return err
}

// theirs has the program of package dbos beside this one time as many workflows.
func (f *createFigures) theirs(ctx context.Context, p *place, binaries string) error {
	args := []string{"-clients", strconv.Itoa(clients), "-each", strconv.Itoa(perClient), "-warm", strconv.Itoa(warmUp)}
	if p.postgres != nil {
		args = append(args, "-postgres", p.url())
	} else {
		args = append(args, "-sqlite", filepath.Join(p.dir, "dbos.db"))
	}
	cmd := exec.CommandContext(ctx, filepath.Join(binaries, "bench-dbos"), args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("DBOS: %w", err)
	}
	var result struct {
		PerSecond float64 `json:"per_second"`
	}
	if err := json.Unmarshal(out, &result); err != nil {
		return fmt.Errorf("DBOS: %w", err)
	}
	f.dbos = result.PerSecond
	return nil
}
