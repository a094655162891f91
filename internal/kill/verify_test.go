package kill

import (
	"bytes"
	"context"
	"fmt"
	"strings"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/client"
)

// verify holds a sandbox against the life that its client had with it.
func (c *caller) verify(ctx context.Context, l *life) error {
	var sb holdfast.Sandbox
	for range c.round.d.apis { // each orchestrator says the same
		err := c.call(ctx, l, "create at the end", func(ctx context.Context, api *client.Client) (err error) {
			sb, err = api.CreateSandbox(ctx, l.create)
			return err
		})
		switch {
		case err != nil:
			return err
		case l.id == "":
			l.id = sb.ID
		case sb.ID != l.id:
			return fmt.Errorf("its request id is %s's", sb.ID)
		}
	}
	l.instance = sb.Instance
	if l.ended || c.round.wasStruck(l) {
		return c.verifyStruck(l, sb)
	}
	if l.late || l.state == "" {
		return nil
	}
	if sb.State != l.state || sb.Incarnation != 1 || sb.Failure != nil {
		return fmt.Errorf("it was told to be %s, and is %s of incarnation %d, %+v", l.state, sb.State, sb.Incarnation, sb.Failure)
	}
	if l.state == holdfast.SandboxDeleted {
		return nil
	}
	if sb.ExpiresAt.Before(l.expires) {
		return fmt.Errorf("it was to expire at %s, and does at %s", l.expires, sb.ExpiresAt)
	}
	return c.verifyInside(ctx, l)
}

// verifyStruck is for one whose instance a blow ended: FAILED with a reason, or
// another incarnation where that was asked for, or deleted.
func (c *caller) verifyStruck(l *life, sb holdfast.Sandbox) error {
	switch {
	case l.state == holdfast.SandboxDeleted && sb.State == holdfast.SandboxDeleted:
	case l.state == holdfast.SandboxDeleted:
		return fmt.Errorf("it was deleted, and is %s", sb.State)
	case sb.State == holdfast.SandboxDeleted:
		return fmt.Errorf("it is deleted, and nobody wanted that")
	case sb.State == holdfast.SandboxSuspended && l.state == holdfast.SandboxSuspended && c.round.blowAt(l) == killed:
	case sb.State == holdfast.SandboxFailed && (sb.Failure == nil || sb.Failure.Reason == ""):
		return fmt.Errorf("it failed without a reason")
	case sb.State == holdfast.SandboxFailed:
	case l.create.Restart == holdfast.RestartFresh && sb.Incarnation == 1 && l.state != "":
		// The blow fell as the instance was about to go; what remains is whole.
	case l.create.Restart == holdfast.RestartNone && sb.Incarnation != 1:
		return fmt.Errorf("it was made anew, and nobody wanted that")
	case l.create.Restart == holdfast.RestartNone && c.round.blowAt(l) != early:
		return fmt.Errorf("its instance was struck, and it is %s", sb.State)
	}
	return nil
}

// verifyInside reads everything back: files, processes and their output, and
// that each start happened once.
func (c *caller) verifyInside(ctx context.Context, l *life) error {
	if err := c.awake(ctx, l); err != nil {
		return err
	}
	for path, want := range l.files {
		if got, err := c.read(ctx, l, path); err != nil || got != want {
			return fmt.Errorf("%s has %d bytes, %d were written: %w", path, len(got), len(want), err)
		}
	}
	if len(l.starts)+len(l.before) == 0 {
		return nil
	}
	lines, err := c.read(ctx, l, "/tmp/starts")
	if err != nil {
		return err
	}
	times := map[string]int{}
	for line := range strings.Lines(lines) {
		times[strings.TrimSpace(line)]++
	}
	for _, id := range l.before {
		if times[id] != 1 {
			return fmt.Errorf("its checkpoint had one line of %s, and it has %d", id, times[id])
		}
	}
	for id, process := range l.starts {
		if times[id] != 1 {
			return fmt.Errorf("%s was started %d times", id, times[id])
		}
		p := holdfast.Process{ID: process}
		if out, err := c.output(ctx, l, &p); err != nil || out != l.boot || p.ExitCode != 0 || p.Lost {
			return fmt.Errorf("%s ended well once, and is %+v with %q: %w", id, p, out, err)
		}
	}
	if len(times) != len(l.before)+len(l.starts) {
		return fmt.Errorf("%d starts left a line, %d were asked for", len(times), len(l.before)+len(l.starts))
	}
	// It still works.
	return c.exec(ctx, l)
}

func (c *caller) read(ctx context.Context, l *life, path string) (string, error) {
	var content bytes.Buffer
	err := c.call(ctx, l, "read", func(ctx context.Context, api *client.Client) error {
		content.Reset()
		_, err := api.Download(ctx, l.id, holdfast.ReadFile{Path: path}, &content)
		return err
	})
	return content.String(), err
}
