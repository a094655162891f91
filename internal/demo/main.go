// Command demo shows a person the main job on real containers, with each step's
// time, and then the same while the network and the server fail. It needs root
// (make demo sees to that), works in a temporary directory and leaves nothing.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/holdfast-dev/holdfast"
)

func main() {
	binaries := flag.String("bin", "bin", "directory of holdfast and holdfast-guest")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *binaries); err != nil {
		fmt.Fprintln(os.Stderr, "\ndemo failed:", err)
		os.Exit(1)
	}
}

// show is one run of the demo.
type show struct {
	ctx     context.Context
	server  *serverProcess
	began   time.Time
	steps   int
	checks  int
	sandbox []string // ids to delete at the end
	session []holdfast.SessionID
}

func run(ctx context.Context, binaries string) (err error) {
	if os.Geteuid() != 0 {
		return errors.New("containers need root: run make demo, which uses sudo where it must")
	}
	dir, err := os.MkdirTemp("", "holdfast-demo-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	before, err := takeCensus()
	if err != nil {
		return err
	}
	s := &show{ctx: ctx, began: time.Now()}
	s.title("holdfast: sandboxes that survive a lost answer")
	s.server, err = startServer(binaries, filepath.Join(dir, "data"))
	if err != nil {
		return err
	}
	s.say("server up: orchestrator, fleet and host agent in one process, SQLite, runc")
	err = errors.Join(s.mainJob(), s.sessions(), s.underFaults())
	err = errors.Join(err, s.deleteAll(), s.server.Stop())
	if err != nil {
		return fmt.Errorf("%w\nthe server's last words:\n%s", err, s.server.Log())
	}
	if err := nothingLeft(before); err != nil {
		return err
	}
	fmt.Printf("\n%d steps, %d promises seen kept, nothing left behind, in %.1f s\n", s.steps, s.checks, time.Since(s.began).Seconds())
	return nil
}

func (s *show) title(text string) { fmt.Printf("\n%s\n", text) }
func (s *show) say(text string)   { fmt.Printf("  %s\n", text) }

// step runs one step and prints its time and what came of it.
func (s *show) step(what string, do func() (string, error)) error {
	began := time.Now()
	result, err := do()
	took := time.Since(began)
	if err != nil {
		fmt.Printf("  %8s  %s: FAILED: %v\n", took.Round(time.Millisecond), what, err)
		return fmt.Errorf("%s: %w", what, err)
	}
	s.steps++
	fmt.Printf("  %8s  %-44s %s\n", took.Round(time.Millisecond), what, result)
	return nil
}

// check is a promise seen kept, or an error that says which was not.
func (s *show) check(ok bool, promise, otherwise string, args ...any) error {
	if !ok {
		return fmt.Errorf("%s: not kept: %s", promise, fmt.Sprintf(otherwise, args...))
	}
	s.checks++
	return nil
}
