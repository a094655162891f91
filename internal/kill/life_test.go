package kill

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/client"
)

// life is what its only client was told about a sandbox. Everything in it was
// acknowledged.
type life struct {
	create   holdfast.CreateSandbox
	id       holdfast.SandboxID
	instance holdfast.InstanceID
	state    holdfast.SandboxState // as the last mutation was answered
	ended    bool                  // it failed, or began anew, because of a blow at its guest or its host
	// late: a call's answer never came, so it may arrive after those that followed
	// it (contract: A16), and neither state nor files can be predicted.
	late    bool
	expires time.Time         // at least
	files   map[string]string // content by path
	starts  map[string]holdfast.ProcessID
	before  []string // starts whose lines came with its disk
	copies  int      // checkpoints that were asked for
	boot    string   // when PID 1 was started, in its kernel's ticks
}

// errEnded ends a life whose instance was struck.
var errEnded = errors.New("its instance was struck")

// client is one caller, who lives one life after the other.
type caller struct {
	round  *round
	number int
	random *rand.Rand
	turn   int
}

// run lives lives until the round's blows are over.
func (c *caller) run(ctx context.Context) {
	for n := 0; !c.round.over.Load() && ctx.Err() == nil; n++ {
		if (n+c.number)%3 == 0 {
			c.employ(ctx, n)
			continue
		}
		l := &life{create: holdfast.CreateSandbox{RequestID: fmt.Sprintf("caller-%d-life-%d", c.number, n), Environment: "base",
			Restart: holdfast.RestartNone, Resources: holdfast.Resources{MemoryBytes: 64 << 20}},
			files: map[string]string{}, starts: map[string]holdfast.ProcessID{}}
		if c.random.IntN(3) == 0 {
			l.create.Restart = holdfast.RestartFresh
		}
		c.round.born(l)
		if err := c.live(ctx, l); err != nil && !errors.Is(err, errEnded) {
			c.round.violate("%s %s: %v", l.create.RequestID, l.id, err)
		}
	}
}

// employ lives the life of a session.
func (c *caller) employ(ctx context.Context, n int) {
	w := &work{life: &life{create: holdfast.CreateSandbox{RequestID: fmt.Sprintf("caller-%d-work-%d", c.number, n)}}}
	w.create = holdfast.CreateSession{RequestID: w.life.create.RequestID, Environment: "base",
		Restart: holdfast.RestartNone, Resources: holdfast.Resources{MemoryBytes: 64 << 20}}
	if c.round.canWait() && c.random.IntN(2) == 0 {
		w.create.Environment = environment
	}
	if c.random.IntN(3) == 0 {
		w.create.Restart = holdfast.RestartFresh
	}
	c.round.engaged(w)
	if err := c.labour(ctx, w); err != nil && !errors.Is(err, errEnded) {
		c.round.violate("%s %s: %v", w.create.RequestID, w.id, err)
	}
}

// live is one life: a create, a few things to do, and usually a delete.
func (c *caller) live(ctx context.Context, l *life) error {
	if err := c.born(ctx, l); err != nil {
		return err
	}
	steps := []func(context.Context, *life) error{c.exec, c.exec, c.write, c.suspendAndResume, c.extend, c.createAgain, c.fork}
	for range 2 + c.random.IntN(4) {
		if err := steps[c.random.IntN(len(steps))](ctx, l); err != nil && (!errors.Is(err, errEnded) || l.create.Restart == holdfast.RestartNone) {
			return err
		}
		if c.round.over.Load() {
			break
		}
	}
	if c.random.IntN(6) == 0 {
		return nil // kept to the end
	}
	return c.delete(ctx, l)
}

// call repeats a call until it has an answer that is not "try again".
func (c *caller) call(ctx context.Context, l *life, what string, do func(context.Context, *client.Client) error) error {
	began := time.Now()
	for {
		c.turn++
		one, cancel := context.WithTimeout(ctx, attempt)
		err := do(one, c.round.d.one(c.turn))
		timedOut := one.Err() != nil
		cancel()
		if timedOut {
			l.late = true
		}
		if err == nil {
			return nil
		}
		switch holdfast.CodeOf(err) {
		case holdfast.Unavailable, holdfast.DeadlineExceeded, holdfast.Aborted:
			c.round.failed(err)
		default:
			if c.round.wasStruck(l) {
				l.ended = true
				return fmt.Errorf("%s: %w: %w", what, errEnded, err)
			}
			if l.late && holdfast.CodeOf(err) == holdfast.FailedPrecondition { // what came late put it in another state
				return fmt.Errorf("%s: %w: %w", what, errEnded, err)
			}
			return fmt.Errorf("%s: %w", what, err)
		}
		if spent := time.Since(began); spent > unhurried(patience) {
			return fmt.Errorf("%s: no answer in %s: %w", what, spent.Round(time.Second), err)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: %w: %w", what, ctx.Err(), err)
		case <-time.After(time.Duration(50+c.random.IntN(200)) * time.Millisecond):
		}
	}
}

// patience bounds how long a call is repeated: nothing here stays away so long.
const patience = 90 * time.Second

// unhurried is a time that what is waited for has on an idle machine, as long as it
// takes on this one: with three processes that want each processor, three times as
// long. It bounds waits for what must happen, and never what may.
func unhurried(d time.Duration) time.Duration {
	raw, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return d
	}
	first, _, _ := strings.Cut(string(raw), " ")
	load, err := strconv.ParseFloat(first, 64)
	if err != nil {
		return d
	}
	return time.Duration(float64(d) * max(1, load/float64(runtime.NumCPU())))
}

// born creates, sometimes with two calls at once.
func (c *caller) born(ctx context.Context, l *life) error {
	deaths := c.round.hostDeaths.Load()
	create := func() (sb holdfast.Sandbox, err error) {
		err = c.call(ctx, l, "create", func(ctx context.Context, api *client.Client) (err error) {
			sb, err = api.CreateSandbox(ctx, l.create)
			return err
		})
		return sb, err
	}
	var twin holdfast.Sandbox
	var twinErr error
	done := make(chan struct{})
	if c.random.IntN(4) == 0 {
		other := c.round.d.one(c.turn + 2)
		go func() {
			defer close(done)
			twin, twinErr = other.CreateSandbox(ctx, l.create)
		}()
	} else {
		close(done)
	}
	sb, err := create()
	<-done
	if twinErr == nil && twin.ID != "" && err == nil && twin.ID != sb.ID {
		return fmt.Errorf("one request id made %s and %s", sb.ID, twin.ID)
	}
	if err != nil || sb.State == holdfast.SandboxFailed {
		return c.stillborn(l, sb, err, deaths)
	}
	l.id, l.instance, l.state, l.expires = sb.ID, sb.Instance, holdfast.SandboxReady, sb.ExpiresAt
	if sb.State != holdfast.SandboxReady && !c.round.wasStruck(l) {
		return fmt.Errorf("create was answered with %s", sb.State)
	}
	return nil
}

// stillborn judges a create that ended FAILED. An instance that may have been
// begun is never begun again, so a blow at its guest or at its host's agent in
// between ends it for good (contract: C2), and that is said.
func (c *caller) stillborn(l *life, sb holdfast.Sandbox, err error, deaths int64) error {
	if err != nil && holdfast.ReasonOf(err) == holdfast.ReasonCreateFailed {
		l.id = holdfast.SandboxID(holdfast.AsError(err).Resource)
	} else if err == nil {
		l.id, l.instance = sb.ID, sb.Instance
	} else {
		return err
	}
	l.ended = true
	ctx, cancel := bounded()
	defer cancel()
	failure := err
	readErr := c.call(ctx, l, "get", func(ctx context.Context, api *client.Client) (err error) {
		sb, err = api.GetSandbox(ctx, l.id)
		return err
	})
	if readErr != nil {
		return errors.Join(failure, readErr)
	}
	l.instance = sb.Instance
	if !c.round.wasStruck(l) && c.round.hostDeaths.Load() == deaths {
		return fmt.Errorf("create failed though neither its guest nor a host was struck: %+v %w", sb.Failure, failure)
	}
	c.round.stillborn.Add(1)
	return errEnded
}

// exec starts a process under a request id of its own, which adds a line to a
// file in the guest and says when PID 1 was started.
func (c *caller) exec(ctx context.Context, l *life) error {
	if err := c.awake(ctx, l); err != nil {
		return err
	}
	id := fmt.Sprintf("start-%d", len(l.before)+len(l.starts)+1)
	in := holdfast.StartProcess{RequestID: id, Command: "sh", Args: []string{"-c", "echo " + id + " >> /tmp/starts; cut -d' ' -f22 /proc/1/stat"}}
	var p holdfast.Process
	start := func(ctx context.Context, api *client.Client) (err error) {
		p, err = api.StartProcess(ctx, l.id, in)
		return err
	}
	if err := c.call(ctx, l, "start", start); err != nil {
		return err
	}
	first := p.ID
	out, err := c.output(ctx, l, &p)
	if err != nil {
		return err
	}
	if p.State != holdfast.ProcessExited || p.ExitCode != 0 || p.Lost || out == "" {
		if c.round.wasStruck(l) {
			l.ended = true
			return errEnded
		}
		return fmt.Errorf("%s ended with %d, lost %v, output %q", id, p.ExitCode, p.Lost, out)
	}
	if c.random.IntN(3) == 0 {
		if err := c.call(ctx, l, "start again", start); err != nil {
			return err
		}
		if p.ID != first {
			return fmt.Errorf("%s is two processes: %s and %s", id, first, p.ID)
		}
	}
	if l.boot == "" {
		l.boot = out
	}
	if l.boot != out {
		if c.round.wasStruck(l) {
			l.ended = true
			return errEnded
		}
		return fmt.Errorf("it was booted twice: PID 1 started at %q, and at %q", l.boot, out)
	}
	l.starts[id] = first
	return nil
}

// output follows a process to its end.
func (c *caller) output(ctx context.Context, l *life, p *holdfast.Process) (string, error) {
	var out bytes.Buffer
	err := c.call(ctx, l, "output", func(ctx context.Context, api *client.Client) error {
		out.Reset()
		ended, err := api.StreamProcessOutput(ctx, l.id, holdfast.ReadOutput{Process: p.ID, Follow: true}, func(chunk holdfast.OutputChunk) error {
			out.Write(chunk.Data)
			return nil
		})
		if err == nil {
			*p = ended
		}
		return err
	})
	return strings.TrimSpace(out.String()), err
}

func (c *caller) write(ctx context.Context, l *life) error {
	if err := c.awake(ctx, l); err != nil {
		return err
	}
	path := fmt.Sprintf("/tmp/file-%d", len(l.files))
	sum := sha256.Sum256([]byte(l.create.RequestID + path))
	content := strings.Repeat(hex.EncodeToString(sum[:]), 200)
	err := c.call(ctx, l, "write", func(ctx context.Context, api *client.Client) error {
		_, err := api.Upload(ctx, l.id, holdfast.WriteFile{Path: path}, strings.NewReader(content))
		return err
	})
	if err == nil {
		l.files[path] = content
	}
	return err
}

func (c *caller) suspendAndResume(ctx context.Context, l *life) error {
	if err := c.move(ctx, l, (*client.Client).SuspendSandbox, holdfast.SandboxSuspended); err != nil {
		return err
	}
	if c.random.IntN(4) == 0 {
		return nil // it stays so until something needs it
	}
	return c.awake(ctx, l)
}

// awake resumes what is suspended.
func (c *caller) awake(ctx context.Context, l *life) error {
	if l.state == holdfast.SandboxReady {
		return nil
	}
	return c.move(ctx, l, (*client.Client).ResumeSandbox, holdfast.SandboxReady)
}

type mutation func(*client.Client, context.Context, holdfast.MutateSandbox) (holdfast.Sandbox, error)

func (c *caller) move(ctx context.Context, l *life, mutate mutation, to holdfast.SandboxState) error {
	var sb holdfast.Sandbox
	err := c.call(ctx, l, "make "+string(to), func(ctx context.Context, api *client.Client) (err error) {
		sb, err = mutate(api, ctx, holdfast.MutateSandbox{ID: l.id})
		return err
	})
	if err != nil {
		return err
	}
	if sb.State != to && !l.late && !c.round.wasStruck(l) {
		return fmt.Errorf("asked to be %s it is %s", to, sb.State)
	}
	l.state, l.expires = to, sb.ExpiresAt
	return nil
}

func (c *caller) extend(ctx context.Context, l *life) error {
	ttl := time.Hour + time.Duration(c.random.IntN(3600))*time.Second
	asked := time.Now()
	var sb holdfast.Sandbox
	err := c.call(ctx, l, "extend", func(ctx context.Context, api *client.Client) (err error) {
		sb, err = api.ExtendSandbox(ctx, holdfast.ExtendSandbox{ID: l.id, TTL: ttl})
		return err
	})
	if err != nil {
		return err
	}
	if sb.ExpiresAt.Before(asked.Add(ttl - time.Second)) {
		return fmt.Errorf("extended by %s at %s, and it expires at %s", ttl, asked, sb.ExpiresAt)
	}
	l.expires = sb.ExpiresAt
	return nil
}

// createAgain repeats the create, which shows the same sandbox.
func (c *caller) createAgain(ctx context.Context, l *life) error {
	var sb holdfast.Sandbox
	err := c.call(ctx, l, "create again", func(ctx context.Context, api *client.Client) (err error) {
		sb, err = api.CreateSandbox(ctx, l.create)
		return err
	})
	if err == nil && sb.ID != l.id {
		return fmt.Errorf("created again it is %s", sb.ID)
	}
	return err
}

func (c *caller) delete(ctx context.Context, l *life) error {
	return c.move(ctx, l, (*client.Client).DeleteSandbox, holdfast.SandboxDeleted)
}
