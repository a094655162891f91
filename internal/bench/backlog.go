package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/orchestrator"
	"github.com/holdfast-dev/holdfast/rpc"
	"github.com/holdfast-dev/holdfast/store"
)

const (
	backlogRows = 100_000
	foreground  = 4                     // clients
	paceOf      = 20 * time.Millisecond // between the creates of one of them
	lookFor     = 8 * time.Second       // how long the foreground is looked at
)

// backlogFigures are one round's.
type backlogFigures struct {
	firstAction  time.Duration // from the start of the process
	idle, during time.Duration // the foreground's creates, 99 of 100
	left         int64         // overdue when the look ended
}

// backlog starts a real server on 100,000 records that are overdue for deletion, and
// on as many that are not, and looks how long creates take in either case.
func backlog(ctx context.Context, o options) ([]line, error) {
	var all []backlogFigures
	for range o.rounds {
		f, err := backlogRound(ctx, o.binaries)
		if err != nil {
			return nil, err
		}
		all = append(all, f)
	}
	first := medianOf(all, func(f backlogFigures) float64 { return f.firstAction.Seconds() })
	idle := medianOf(all, func(f backlogFigures) float64 { return f.idle.Seconds() })
	during := medianOf(all, func(f backlogFigures) float64 { return f.during.Seconds() })
	left := medianOf(all, func(f backlogFigures) float64 { return float64(f.left) })
	return []line{{
		what:     "a start with 100,000 overdue, SQLite: until the first is dealt with",
		measured: fmt.Sprintf("%.2f s from the process's start", first), against: "1 s",
		ratio: first, goal: "< 1.00", met: first < 1,
	}, {
		what:     fmt.Sprintf("creates meanwhile through the API, %d clients, each every %d ms, 99 of 100", foreground, paceOf.Milliseconds()),
		measured: fmt.Sprintf("%.1f ms (%.0f overdue left after %.0f s)", 1000*during, left, lookFor.Seconds()),
		against:  fmt.Sprintf("with nothing overdue, %.1f ms", 1000*idle),
		ratio:    during / idle, goal: "< 2.00", met: during < 2*idle,
	}}, nil
}

func backlogRound(ctx context.Context, binaries string) (f backlogFigures, err error) {
	err = engine{name: "SQLite"}.with(ctx, func(p *place) error {
		if err := failOne(ctx, p.dir, binaries); err != nil {
			return err
		}
		if err := fillBacklog(ctx, p); err != nil {
			return err
		}
		if err := dueAt(ctx, p, time.Now().Add(time.Hour)); err != nil {
			return err
		}
		if f.idle, _, err = look(ctx, p.dir, binaries, false); err != nil {
			return err
		}
		if err := dueAt(ctx, p, time.Now().Add(-time.Hour)); err != nil {
			return err
		}
		if f.during, f.firstAction, err = look(ctx, p.dir, binaries, true); err != nil {
			return err
		}
		f.left, err = stillDue(ctx, p)
		return err
	})
	return f, err
}

// failOne leaves one FAILED sandbox: instances of the simulated runtime end with
// their process.
func failOne(ctx context.Context, dir, binaries string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	var id holdfast.SandboxID
	for _, act := range []func(rpc.Services) (bool, error){
		func(api rpc.Services) (bool, error) {
			sb, err := api.Sandboxes.CreateSandbox(ctx, holdfast.Caller{}, createInput("first", 0, 0))
			id = sb.ID
			return err == nil || !holdfast.Transient(err), err
		},
		func(api rpc.Services) (bool, error) {
			sb, err := api.Sandboxes.GetSandbox(ctx, holdfast.Caller{}, id)
			return sb.State == holdfast.SandboxFailed, err
		},
	} {
		if err := served(ctx, dir, binaries, act); err != nil {
			return err
		}
	}
	return nil
}

// served repeats act against a server on a data directory until it is done.
func served(ctx context.Context, dir, binaries string, act func(rpc.Services) (done bool, err error)) (err error) {
	s, err := startServer(ctx, binaries, dir, "--runtime", "simulated")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.stop()) }()
	api := rpc.Dial(rpc.NewHTTPClient(), s.url, s.key)
	for {
		done, err := act(api)
		if done || err != nil && !holdfast.Transient(err) {
			return err
		}
		if err := pause(ctx, 20*time.Millisecond); err != nil {
			return err
		}
	}
}

// orchestratorOf opens the orchestrator's database of a server that does not run.
func orchestratorOf(ctx context.Context, p *place, work func(crowd) error) (err error) {
	db, err := p.open(ctx, "orchestrator", orchestrator.Migrations()...)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	return work(crowd{db: db})
}

func fillBacklog(ctx context.Context, p *place) error {
	return orchestratorOf(ctx, p, func(c crowd) error {
		var template string
		err := c.db.View(ctx, func(tx store.Tx) error {
			return tx.QueryRowContext(ctx, `SELECT id FROM sandbox WHERE state = 'FAILED'`).Scan(&template)
		})
		if err != nil {
			return err
		}
		if err := p.copySandboxes(ctx, c.db, template, backlogRows); err != nil {
			return err
		}
		return p.settle(ctx)
	})
}

func dueAt(ctx context.Context, p *place, at time.Time) error {
	return orchestratorOf(ctx, p, func(c crowd) error {
		return execute(ctx, c.db, `UPDATE sandbox SET expires_at = $1 WHERE id <= $2`, at.UnixMicro(), numbered("sb", backlogRows))
	})
}

func stillDue(ctx context.Context, p *place) (n int64, err error) {
	err = orchestratorOf(ctx, p, func(c crowd) error {
		n, err = number(ctx, c.db, `SELECT COUNT(*) FROM sandbox WHERE id <= $1 AND state <> 'DELETED'`, numbered("sb", backlogRows))
		return err
	})
	return n, err
}

// look starts a server and creates beside whatever it has to do. With overdue rows
// it tells also when the first of them was dealt with.
func look(ctx context.Context, dir, binaries string, overdue bool) (p99, first time.Duration, err error) {
	began := time.Now()
	s, err := startServer(ctx, binaries, dir, "--runtime", "simulated",
		"--capacity-cpu", fmt.Sprint(int64(1)<<40), "--capacity-memory", fmt.Sprint(int64(1)<<60), "--capacity-instances", fmt.Sprint(1<<30))
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, s.stop()) }()
	var watching sync.WaitGroup
	var watched error
	if overdue {
		watching.Go(func() {
			first, watched = firstDealtWith(ctx, rpc.Dial(rpc.NewHTTPClient(), s.url, s.key), began)
		})
	}
	p99, err = createsBeside(ctx, rpc.Dial(rpc.NewHTTPClient(), s.url, s.key), fmt.Sprint(began.UnixNano()))
	watching.Wait()
	return p99, first, errors.Join(err, watched)
}

// firstDealtWith waits until the sweep, which goes by time and id, has begun with
// its first.
func firstDealtWith(ctx context.Context, api rpc.Services, began time.Time) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		sb, err := api.Sandboxes.GetSandbox(ctx, holdfast.Caller{}, holdfast.SandboxID(numbered("sb", 1)))
		if err != nil {
			return 0, err
		}
		if sb.State != holdfast.SandboxFailed {
			return time.Since(began), nil
		}
		if err := pause(ctx, 5*time.Millisecond); err != nil {
			return 0, err
		}
	}
}

// createsBeside has a few clients create at a pace, and tells how long 99 of 100 creates took at most.
func createsBeside(ctx context.Context, api rpc.Services, word string) (time.Duration, error) {
	all := make([][]time.Duration, foreground)
	until := time.Now().Add(lookFor)
	err := inParallel(foreground, func(client int) error {
		pace := time.NewTicker(paceOf)
		defer pace.Stop()
		for i := 0; time.Now().Before(until); i++ {
			began := time.Now()
			_, err := api.Sandboxes.CreateSandbox(ctx, holdfast.Caller{}, createInput(word, client, i))
			if err != nil && i > 0 { // at first the host may not have told of itself yet
				return err
			}
			if err == nil {
				all[client] = append(all[client], time.Since(began))
			}
			<-pace.C
		}
		return nil
	})
	took := slices.Concat(all...)
	slices.Sort(took)
	if err == nil && len(took) < 100 {
		err = fmt.Errorf("only %d creates in %s", len(took), lookFor)
	}
	if err != nil {
		return 0, err
	}
	return took[int(math.Ceil(0.99*float64(len(took))))-1], nil
}
