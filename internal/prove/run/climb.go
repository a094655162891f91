package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/holdfast-dev/holdfast/internal/prove"
)

// result is what came of a rung.
type result struct {
	rung    rung
	figures []prove.Figure
	failure string // "" when all its tests passed
	log     string // file of all output
	took    time.Duration
}

// grace is what a rung may take beyond its time: to build, and to end the round
// that it is in.
const grace = 20 * time.Minute

// climb runs a rung's tests. What it reported counts even where it failed.
func climb(ctx context.Context, r rung, share time.Duration, files string) result {
	out := result{rung: r, log: files + ".log"}
	if len(r.packages) == 0 {
		out.failure = "there is no such rung here"
		return out
	}
	began := time.Now()
	err := test(ctx, r, share, files)
	out.took = time.Since(began)
	figures, readErr := prove.Read(files + ".figures")
	out.figures = figures
	if err = errors.Join(err, readErr); err != nil {
		out.failure = err.Error()
	}
	if skipped := grep(out.log, "--- SKIP"); out.failure == "" && skipped != "" {
		out.failure = "skipped: " + skipped
	}
	if out.failure == "" && len(figures) == 0 {
		out.failure = "it reported no figure"
	}
	return out
}

// test is one go test without the race detector, which would only make it count less.
func test(ctx context.Context, r rung, share time.Duration, files string) (err error) {
	log, err := os.Create(files + ".log")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, log.Close()) }()
	each := share / time.Duration(r.tests())
	args := []string{"test", "-run", "^TestProve", "-count=1", "-v", "-p", "1", "-timeout", (share + grace).String()}
	for _, p := range r.packages {
		args = append(args, p.path)
	}
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Env = append(os.Environ(), prove.EnvBudget+"="+each.String(), prove.EnvFigures+"="+files+".figures")
	cmd.Stdout, cmd.Stderr = log, log
	// The tests end in order: a signal goes to go and to what it runs.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGINT) }
	cmd.WaitDelay = time.Minute
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("its tests: %w", err)
	}
	if !r.waits { // what waits has deadlines in real time: it comes first where it is climbed beside
		err = syscall.Setpriority(syscall.PRIO_PGRP, cmd.Process.Pid, yields)
	}
	if waited := cmd.Wait(); waited != nil {
		return errors.Join(err, fmt.Errorf("its tests: %w", waited))
	}
	return err
}

// yields is the nice value of rungs that compute.
const yields = 10

// grep is the first line of a file that has a word and what follows it.
func grep(path, word string) string {
	raw, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	_, after, found := strings.Cut(string(raw), word)
	if !found {
		return ""
	}
	lines := strings.SplitN(after, "\n", 3)
	return strings.TrimSpace(strings.Join(lines[:min(2, len(lines))], " "))
}

// tailLines is how much of a failed rung's output is shown.
const tailLines = 150

func (r result) tail() string {
	raw, err := os.ReadFile(r.log)
	if err != nil {
		return "" // it never ran
	}
	var lines []string
	for line := range strings.Lines(string(raw)) {
		if !strings.Contains(line, "--- PASS") && !strings.HasPrefix(line, "=== ") {
			lines = append(lines, strings.TrimSuffix(line, "\n"))
		}
	}
	return strings.Join(lines[max(0, len(lines)-tailLines):], "\n")
}
