// Command dbos times one-step workflows of the DBOS library, each with an id of its
// own, for the speed table of the package above. It is a module of its own, so that
// the product does not depend on the library. It prints one JSON object.
package main

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/dbos-inc/dbos-transact-golang/dbos"
	_ "github.com/dbos-inc/dbos-transact-golang/dbos/driver/sqlite"
)

// result is what the program prints.
type result struct {
	PerSecond float64 `json:"per_second"`
}

type options struct {
	postgres, sqlite string
	conns, clients   int
	each, warm       int
	synchronous      string
}

func main() {
	var o options
	flag.StringVar(&o.postgres, "postgres", "", "postgres://…?…")
	flag.StringVar(&o.sqlite, "sqlite", "", "file, instead")
	flag.IntVar(&o.conns, "conns", 0, "connections; 0: the fastest that was found, 2 of 1 to 16 on SQLite, 32 of 8 to 48 on PostgreSQL")
	flag.IntVar(&o.clients, "clients", 32, "how many run workflows at once")
	flag.IntVar(&o.each, "each", 64, "workflows of each")
	flag.IntVar(&o.warm, "warm", 8, "workflows of each before the clock starts")
	flag.StringVar(&o.synchronous, "synchronous", "FULL", "of SQLite")
	flag.Parse()
	r, err := run(o)
	if err == nil {
		err = json.NewEncoder(os.Stdout).Encode(r)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "dbos:", err)
		os.Exit(1)
	}
}

// config is the library's own but for the level of its log, for the number of
// connections and, on SQLite, for synchronous: it would take NORMAL, which loses
// commits with the power.
func (o options) config() (dbos.Config, error) {
	c := dbos.Config{AppName: "bench", ApplicationVersion: "1", DatabaseURL: o.postgres,
		Logger: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))}
	if o.sqlite == "" {
		c.DatabaseURL += fmt.Sprintf("&pool_max_conns=%d", cmp.Or(o.conns, 32))
		return c, nil
	}
	o.conns = cmp.Or(o.conns, 2)
	db, err := sql.Open("sqlite", "file:"+o.sqlite+"?_txlock=immediate&_pragma=journal_mode(WAL)&_pragma=busy_timeout(5000)"+
		"&_pragma=foreign_keys(ON)&_pragma=synchronous("+o.synchronous+")")
	if err != nil {
		return c, err
	}
	db.SetMaxOpenConns(o.conns)
	db.SetMaxIdleConns(o.conns)
	c.SQLiteSystemDB = db
	return c, nil
}

// oneStep is the least that is durable: one step, which does nothing.
func oneStep(ctx dbos.Context, input string) (string, error) {
	return dbos.RunAsStep(ctx, func(context.Context) (string, error) { return input, nil })
}

func run(o options) (r result, err error) {
	config, err := o.config()
	if err != nil {
		return r, err
	}
	if config.SQLiteSystemDB != nil {
		defer func() { err = errors.Join(err, config.SQLiteSystemDB.Close()) }()
	}
	ctx, err := dbos.NewContext(context.Background(), config)
	if err != nil {
		return r, err
	}
	dbos.RegisterWorkflow(ctx, oneStep)
	if err := dbos.Launch(ctx); err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, dbos.Shutdown(ctx, 10*time.Second)) }()
	if _, err := pass(ctx, "warm", o.clients, o.warm); err != nil {
		return r, err
	}
	r.PerSecond, err = pass(ctx, "run", o.clients, o.each)
	return r, err
}

// pass runs workflows with ids that begin with a word, and tells how many a second.
func pass(ctx dbos.Context, word string, clients, each int) (float64, error) {
	began := time.Now()
	errs := make([]error, clients)
	var wg sync.WaitGroup
	for c := range clients {
		wg.Go(func() {
			for i := 0; i < each && errs[c] == nil; i++ {
				errs[c] = one(ctx, fmt.Sprintf("%s-%d-%d", word, c, i))
			}
		})
	}
	wg.Wait()
	return float64(clients*each) / time.Since(began).Seconds(), errors.Join(errs...)
}

func one(ctx dbos.Context, id string) error {
	handle, err := dbos.RunWorkflow(ctx, oneStep, "hello", dbos.WithWorkflowID(id))
	if err != nil {
		return err
	}
	got, err := handle.GetResult()
	if err == nil && got != "hello" {
		err = fmt.Errorf("workflow %s answered %q", id, got)
	}
	return err
}
