// Command run shows a person a whole deployment on one machine: two orchestrators,
// two fleet services and three host agents on one throwaway PostgreSQL server. It
// stays in the foreground; ^C ends all of it and leaves nothing.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/holdfast-dev/holdfast/internal/cluster"
)

func main() {
	var config cluster.Config
	flag.StringVar(&config.Binaries, "bin", "bin", "directory of holdfast and holdfast-guest")
	flag.StringVar(&config.Runtime, "runtime", "runc", "runc or simulated")
	flag.IntVar(&config.FirstPort, "port", 7420, "the first of seven ports on loopback; 0: any that are free")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, stop, os.Stdout, config)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "cluster:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, stop func(), out io.Writer, config cluster.Config) (err error) {
	if config.Runtime == "runc" && os.Geteuid() != 0 {
		return errors.New("containers need root: run make cluster, which uses sudo where it must")
	}
	if config.Binaries, err = filepath.Abs(config.Binaries); err != nil {
		return err
	}
	if config.Directory, err = os.MkdirTemp("", "holdfast-cluster-"); err != nil {
		return err
	}
	c, err := cluster.Start(ctx, config)
	if err == nil {
		if _, err = io.WriteString(out, welcome(c)); err == nil {
			<-ctx.Done() // processes that end meanwhile are the person's to kill
		}
		stop() // a second ^C ends at once
		_, said := fmt.Fprintln(out, "stopping; the sandboxes go with it")
		err = errors.Join(err, said, empty(c), c.Stop())
	}
	return errors.Join(err, os.RemoveAll(config.Directory))
}

// welcome is what a person needs for the README's tour.
func welcome(c *cluster.Cluster) string {
	var w strings.Builder
	fmt.Fprintln(&w, "two orchestrators, two fleets and three hosts on one PostgreSQL server take calls:")
	for _, p := range c.All() {
		fmt.Fprintf(&w, "  %-14s %s  log: %s\n", p.Name, p.URL(), p.LogPath())
	}
	first := c.Orchestrators[0]
	fmt.Fprintf(&w, `
admin API key, the same at both orchestrators: %s

The README's tour, in another terminal as root (the second orchestrator's URL does as well):
  export HOLDFAST_SERVER=%s HOLDFAST_DATA_DIR=%s
  bin/holdfast sandbox create base

Kill any of the seven while you are at it; the rest goes on. ^C here ends all of it.
`, c.Key, first.URL(), first.DataDir)
	return w.String()
}

// empty deletes the sandboxes, so that nothing of them stays on the machine, as
// far as the cluster is still there to do it.
func empty(c *cluster.Cluster) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return c.Empty(ctx)
}
