package mutant

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"
)

// limit is how long a notice's tests may take. A package's own that hang with the
// bug in them have noticed it; a rung's slice that is not through by then says
// nothing.
func (n Notice) limit() time.Duration {
	if n.Rung == Tests {
		return 100 * time.Second
	}
	return 10 * time.Minute
}

// killDelay is how long a cancelled `go test` has to end its own children.
const killDelay = 5 * time.Second

// Tree is a checkout of the module, which is read and never written.
type Tree struct {
	Root    string // of the module, absolute
	Scratch string // a directory of the caller's for overlays, absolute
}

// Root finds the module around the working directory.
func Root(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "go", "env", "GOMOD").Output()
	if err != nil {
		return "", fmt.Errorf("go env GOMOD: %w", err)
	}
	mod := strings.TrimSpace(string(out))
	if mod == "" || mod == os.DevNull {
		return "", errors.New("not inside the module")
	}
	return filepath.Dir(mod), nil
}

// Result is what became of one run of tests.
type Result struct {
	Passed bool
	Test   string        // the first that failed, or was running when the time was over
	After  string        // how many seeds or schedules that took, where the test says so
	Took   time.Duration // build included
	Output string        // of `go test`
}

// errNothing means that a run says nothing about the bug.
var errNothing = errors.New("nothing was tested")

// Try builds a package's tests with the bug and runs those that should notice
// it. An error means that nothing was tested: it no longer applies, does not
// compile, or the tests are gone or were skipped.
func (t Tree) Try(ctx context.Context, m Mutant, n Notice) (Result, error) {
	changed, err := m.Apply(t.Root)
	if err != nil {
		return Result{}, err
	}
	dir, err := os.MkdirTemp(t.Scratch, "mutant-")
	if err != nil {
		return Result{}, fmt.Errorf("%s: %w", m.Name, err)
	}
	overlay, err := t.writeOverlay(dir, m.File, changed)
	var r Result
	if err == nil {
		r, err = t.test(ctx, n, overlay)
	}
	if err = errors.Join(err, os.RemoveAll(dir)); err != nil {
		return r, fmt.Errorf("%s: %w", m.Name, err)
	}
	return r, nil
}

// Check runs tests without any bug: they have to pass, or their failing with one
// says nothing.
func (t Tree) Check(ctx context.Context, n Notice) (Result, error) { return t.test(ctx, n, "") }

// writeOverlay writes the changed file and the list that has the build read it
// in place of the module's.
func (t Tree) writeOverlay(dir, file string, changed []byte) (string, error) {
	source := filepath.Join(dir, filepath.Base(file))
	list, err := json.Marshal(map[string]map[string]string{
		"Replace": {filepath.Join(t.Root, filepath.FromSlash(file)): source}})
	if err != nil {
		return "", err
	}
	overlay := filepath.Join(dir, "overlay.json")
	return overlay, errors.Join(os.WriteFile(source, changed, 0o600), os.WriteFile(overlay, list, 0o600))
}

// test runs the tests of a notice. The overlay goes by the environment, so that a
// test which builds programs builds them with the bug too.
func (t Tree) test(ctx context.Context, n Notice, overlay string) (Result, error) {
	cmd := exec.CommandContext(ctx, "go", "test", "-count=1", "-vet=off", "-timeout="+n.limit().String(), "-run", n.Pattern(), "./"+n.Package)
	cmd.Dir = t.Root
	cmd.Env = t.environment(overlay)
	// It has a group of its own, which ends with it, whatever the tests started in that group.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = killDelay
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	began := time.Now()
	err := cmd.Run()
	r := Result{Passed: err == nil, Took: time.Since(began), Output: out.String()}
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return r, ctx.Err()
	case err != nil && !errors.As(err, &exit):
		return r, fmt.Errorf("go test: %w", err)
	}
	return r.read(n)
}

func (t Tree) environment(overlay string) []string {
	env := slices.DeleteFunc(os.Environ(), func(v string) bool { // a rung inside runs its slice
		return strings.HasPrefix(v, "HOLDFAST_PROVE") || strings.HasPrefix(v, "GOFLAGS=")
	})
	flags := os.Getenv("GOFLAGS")
	if overlay != "" {
		flags = strings.TrimSpace(flags + " -overlay=" + overlay)
	}
	// Without cgo, as the programs are built, so that the build cache is theirs.
	return append(env, "GOFLAGS="+flags, "CGO_ENABLED=0")
}

var (
	// A test that failed, and what it has to say of how long that took.
	failed  = regexp.MustCompile(`(?m)^\s*--- FAIL: (\S+)`)
	running = regexp.MustCompile(`(?m)^\s*running tests:\n\s+(\S+)`)
	after   = regexp.MustCompile(`(?i)\b(?:after|in) (\d+ (?:distinct )?(?:seeds?|schedules?|states?|runs?|histories|crash points?|kills?))\b`)
	counted = regexp.MustCompile(`\brung [1-6]: (\d+ [^,\n]+)`)
	seed    = regexp.MustCompile(`(?i)\bseed[ =:]+(\d+)`)
)

// effort is how much a rung had tried when it failed, as it says itself: seeds are
// numbered from the first on.
func effort(output string) string {
	if said := seed.FindStringSubmatch(output); said != nil {
		return "seed " + said[1]
	}
	for _, form := range []*regexp.Regexp{after, counted} {
		if said := form.FindStringSubmatch(output); said != nil {
			return said[1]
		}
	}
	return ""
}

// read tells a bug that was noticed from a run that says nothing.
func (r Result) read(n Notice) (Result, error) {
	switch {
	case strings.Contains(r.Output, "[build failed]"), strings.Contains(r.Output, "[setup failed]"):
		return r, fmt.Errorf("%w: %s does not build\n%s", errNothing, n.Package, r.Output)
	case strings.Contains(r.Output, "[no tests to run]"), strings.Contains(r.Output, "[no test files]"):
		return r, fmt.Errorf("%w: %s has no tests %s", errNothing, n.Package, n.Pattern())
	}
	if r.Passed {
		return r, nil
	}
	if all := failed.FindAllStringSubmatch(r.Output, -1); len(all) > 0 {
		r.Test = all[0][1]
		if len(all) > 1 && strings.HasPrefix(all[1][1], r.Test+"/") {
			r.Test = all[1][1] // its part says more
		}
	} else if hung := running.FindStringSubmatch(r.Output); hung != nil && n.Rung == Tests {
		r.Test = hung[1] + " (it hung)"
	} else {
		return r, fmt.Errorf("%w: %s failed, but none of its tests\n%s", errNothing, n.Package, r.Output)
	}
	r.After = effort(r.Output)
	return r, nil
}
