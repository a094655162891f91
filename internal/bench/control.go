package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/internal/server"
	"github.com/holdfast-dev/holdfast/rpc"
	"github.com/holdfast-dev/holdfast/store"
	"github.com/holdfast-dev/holdfast/store/sqlite"
)

const (
	clients    = 32
	perClient  = 64
	allCreates = clients * perClient
)

// controlPlane times creates on the simulated runtime by 32 clients against a
// loop of as many grouped bare commits as one create makes, on as many databases.
func controlPlane(ctx context.Context, rounds int, _ string) (line, error) {
	server.SpareProcessor() // as holdfast serve does
	var creates, floors, busy, floorBusy []float64
	var commits float64
	for range rounds {
		c, err := timeCreates(ctx)
		if err != nil {
			return line{}, err
		}
		f, cpu, err := timeFloor(ctx, c.orchestrator, c.fleet)
		if err != nil {
			return line{}, err
		}
		commits = c.orchestrator + c.fleet
		creates, floors = append(creates, c.perSecond), append(floors, f)
		busy, floorBusy = append(busy, c.cpu), append(floorBusy, cpu)
	}
	ratio := median(creates) / median(floors)
	return line{
		what:     fmt.Sprintf("creates on the simulated runtime, SQLite FULL, %d clients (%.1f commits each)", clients, commits),
		measured: fmt.Sprintf("%.0f/s, %.0f us of CPU each", median(creates), median(busy)),
		against:  fmt.Sprintf("%.0f/s of as many bare grouped commits, %.0f us", median(floors), median(floorBusy)),
		ratio:    fmt.Sprintf("%.2f", ratio), goal: ">= 0.60, <= 5 commits", met: ratio >= 0.6 && commits <= 5,
	}, nil
}

// createFigures is one round's: creates a second, each one's processor time in
// microseconds (its client's too, which is in this process), and its commits.
type createFigures struct{ perSecond, cpu, orchestrator, fleet float64 }

func timeCreates(ctx context.Context) (_ createFigures, err error) {
	dir, err := os.MkdirTemp("", "holdfast-bench-")
	if err != nil {
		return createFigures{}, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	s, err := server.Start(ctx, server.Config{DataDir: dir, Listen: "127.0.0.1:0", Runtime: "simulated",
		Capacity: holdfast.Capacity{CPUMillis: 1 << 40, MemoryBytes: 1 << 60, Instances: 1 << 30},
		Logger:   slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))})
	if err != nil {
		return createFigures{}, err
	}
	defer func() { err = errors.Join(err, s.Shutdown(ctx)) }()
	key, _ := s.AdminKey()
	api := rpc.Dial(rpc.NewHTTPClient(), s.URL(), key)
	if _, err := api.Sandboxes.CreateSandbox(ctx, holdfast.Caller{}, createInput("warm")); err != nil {
		return createFigures{}, err
	}
	before, err := updates(ctx, s.URL())
	if err != nil {
		return createFigures{}, err
	}
	began, spent := time.Now(), cpuTime()
	err = inParallel(func(client int) error {
		for i := range perClient {
			_, err := api.Sandboxes.CreateSandbox(ctx, holdfast.Caller{}, createInput(fmt.Sprint(client, "-", i)))
			if err != nil {
				return err
			}
		}
		return nil
	})
	took := time.Since(began)
	spent = cpuTime() - spent
	if err != nil {
		return createFigures{}, err
	}
	after, err := updates(ctx, s.URL())
	return createFigures{
		perSecond:    allCreates / took.Seconds(),
		cpu:          float64(spent.Microseconds()) / allCreates,
		orchestrator: (after["orchestrator"] - before["orchestrator"]) / allCreates,
		fleet:        (after["fleet"] - before["fleet"]) / allCreates,
	}, err
}

func createInput(id string) holdfast.CreateSandbox {
	return holdfast.CreateSandbox{RequestID: id, Environment: "base"}
}

func inParallel(work func(client int) error) error {
	errs := make([]error, clients)
	var wg sync.WaitGroup
	for i := range clients {
		wg.Go(func() { errs[i] = work(i) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

var updatesLine = regexp.MustCompile(`(?m)^holdfast_store_updates_total\{party="(\w+)"\} (\S+)$`)

func updates(ctx context.Context, url string) (map[string]float64, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/metrics", nil)
	if err != nil {
		return nil, err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	raw, err := io.ReadAll(res.Body)
	if err = errors.Join(err, res.Body.Close()); err != nil {
		return nil, err
	}
	found := map[string]float64{}
	for _, m := range updatesLine.FindAllStringSubmatch(string(raw), -1) {
		if found[m[1]], err = strconv.ParseFloat(m[2], 64); err != nil {
			return nil, err
		}
	}
	return found, nil
}

// timeFloor makes as many one-row commits as the creates did, on two databases.
func timeFloor(ctx context.Context, first, second float64) (perSecond, cpu float64, err error) {
	dir, err := os.MkdirTemp("", "holdfast-bench-")
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	var dbs []*sqlite.DB
	for _, name := range []string{"a.db", "b.db"} {
		db, err := sqlite.Open(ctx, sqlite.Config{Path: filepath.Join(dir, name)})
		if err != nil {
			return 0, 0, err
		}
		defer func() { err = errors.Join(err, db.Close()) }()
		if err := insert(ctx, db, `CREATE TABLE bare (id TEXT PRIMARY KEY, value TEXT NOT NULL)`); err != nil {
			return 0, 0, err
		}
		dbs = append(dbs, db)
	}
	began, spent := time.Now(), cpuTime()
	err = inParallel(func(client int) error {
		for i := range perClient {
			for d, n := range []float64{first, second} {
				for c := range int(n + 0.5) {
					id := fmt.Sprintf("%d-%d-%d", client, i, c)
					if err := insert(ctx, dbs[d], `INSERT INTO bare (id, value) VALUES ($1, $2)`, id, "value"); err != nil {
						return err
					}
				}
			}
		}
		return nil
	})
	took := time.Since(began)
	return allCreates / took.Seconds(), float64((cpuTime() - spent).Microseconds()) / allCreates, err
}

// cpuTime is the processor time of this process so far.
func cpuTime() time.Duration {
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		return 0 // it cannot fail for oneself
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

func insert(ctx context.Context, db store.DB, query string, args ...any) error {
	return db.Update(ctx, func(tx store.Tx) error {
		_, err := tx.ExecContext(ctx, query, args...)
		return err
	})
}
