package main

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/client"
	"github.com/holdfast-dev/holdfast/rpc"
	"github.com/holdfast-dev/holdfast/transport"
)

// once faults the first call of a procedure and lets all others pass.
func once(procedure string, kind transport.Kind) transport.Plan {
	var fired atomic.Bool
	return func(r *http.Request) transport.Fault {
		if strings.HasSuffix(r.URL.Path, "/"+procedure) && fired.CompareAndSwap(false, true) {
			return transport.Fault{Kind: kind}
		}
		return transport.Fault{}
	}
}

// faulty is a client whose network does what plan says.
func (s *show) faulty(plan transport.Plan) (*client.Client, *transport.Faulty, error) {
	f := &transport.Faulty{Next: rpc.NewHTTPClient().Transport, Plan: plan}
	c, err := s.server.client(client.WithHTTPClient(&http.Client{Transport: f}))
	return c, f, err
}

// underFaults is the main job while the network and the server fail.
func (s *show) underFaults() error {
	s.title("The same, while things fail")
	steps := []struct {
		what string
		do   func() (string, error)
	}{
		{"create; its answer is lost after the commit", s.lostAnswer},
		{"create; the request arrives twice at once", s.twice},
		{"create; the server is killed in the middle", s.killedCreate},
		{"the server is killed under a running command", s.killedUnderCommand},
		{"delete; its answer is lost", s.lostDelete},
	}
	for _, step := range steps {
		if err := s.step(step.what, step.do); err != nil {
			return err
		}
	}
	return nil
}

func (s *show) lostAnswer() (string, error) {
	c, f, err := s.faulty(once("CreateSandbox", transport.LoseAnswer))
	if err != nil {
		return "", err
	}
	sb, err := c.CreateSandbox(s.ctx, holdfast.CreateSandbox{RequestID: "demo-lost", Environment: "base"})
	if err != nil {
		return "", err
	}
	s.sandbox = append(s.sandbox, string(sb.ID))
	if f.Fired(transport.LoseAnswer) != 1 {
		return "", errors.New("the fault did not fire")
	}
	return s.onlyOne(sb, "demo-lost")
}

// onlyOne holds that a request id has one sandbox, READY, and no other was made.
func (s *show) onlyOne(sb holdfast.Sandbox, requestID string) (string, error) {
	c, err := s.server.client()
	if err != nil {
		return "", err
	}
	again, err := c.CreateSandbox(s.ctx, holdfast.CreateSandbox{RequestID: requestID, Environment: "base"})
	if err != nil {
		return "", err
	}
	page, err := c.ListSandboxes(s.ctx, holdfast.ListSandboxes{PageSize: holdfast.MaxPageSize})
	if err != nil {
		return "", err
	}
	known := map[string]bool{}
	for _, id := range s.sandbox {
		known[id] = true
	}
	for _, listed := range page.Sandboxes {
		if !known[string(listed.ID)] && listed.Owner == "" { // a session's is its own
			return "", fmt.Errorf("A3: not kept: a second sandbox %s", listed.ID)
		}
	}
	return "one sandbox, one container", s.check(again.ID == sb.ID && again.State == holdfast.SandboxReady, "A3", "%s %s, then %s %s", sb.ID, sb.State, again.ID, again.State)
}

func (s *show) twice() (string, error) {
	c, f, err := s.faulty(once("CreateSandbox", transport.Overlap))
	if err != nil {
		return "", err
	}
	sb, err := c.CreateSandbox(s.ctx, holdfast.CreateSandbox{RequestID: "demo-twice", Environment: "base"})
	if err != nil {
		return "", err
	}
	s.sandbox = append(s.sandbox, string(sb.ID))
	if f.Fired(transport.Overlap) != 1 {
		return "", errors.New("the fault did not fire")
	}
	return s.onlyOne(sb, "demo-twice")
}

// killedCreate kills the server as soon as the create is recorded, and restarts
// it while the client goes on trying.
func (s *show) killedCreate() (string, error) {
	c, err := s.server.client()
	if err != nil {
		return "", err
	}
	var sb holdfast.Sandbox
	var createErr error
	var wg sync.WaitGroup
	wg.Go(func() {
		sb, createErr = c.CreateSandbox(s.ctx, holdfast.CreateSandbox{RequestID: "demo-killed", Environment: "base"})
	})
	if err := s.awaitRecorded(); err != nil {
		wg.Wait()
		return "", errors.Join(err, createErr)
	}
	if err := s.server.restart(); err != nil {
		return "", err
	}
	wg.Wait()
	if createErr != nil {
		return "", createErr
	}
	s.sandbox = append(s.sandbox, string(sb.ID))
	return s.onlyOne(sb, "demo-killed")
}

// awaitRecorded returns when the server has one sandbox more than the demo knows.
func (s *show) awaitRecorded() error {
	c, err := s.server.client()
	if err != nil {
		return err
	}
	alive := 0
	for _, id := range s.sandbox {
		if sb, err := c.GetSandbox(s.ctx, holdfast.SandboxID(id)); err == nil && sb.State != holdfast.SandboxDeleted {
			alive++
		}
	}
	deadline := time.Now().Add(20 * time.Second)
	for time.Now().Before(deadline) {
		page, err := c.ListSandboxes(s.ctx, holdfast.ListSandboxes{})
		if err != nil {
			return err
		}
		if len(page.Sandboxes) > alive {
			return nil
		}
	}
	return errors.New("the create was never recorded")
}

// killedUnderCommand kills the server while a command prints, and reads all of
// its output and its exit code after the restart.
func (s *show) killedUnderCommand() (string, error) {
	c, err := s.server.client()
	if err != nil {
		return "", err
	}
	id := holdfast.SandboxID(s.sandbox[len(s.sandbox)-1])
	p, err := c.StartProcess(s.ctx, id, holdfast.StartProcess{RequestID: "demo-cmd", Command: "sh",
		Args: []string{"-c", "for i in 1 2 3 4 5 6 7 8; do echo $i; sleep 0.3; done; exit 7"}})
	if err != nil {
		return "", err
	}
	var out strings.Builder
	killed := false
	p, err = c.StreamProcessOutput(s.ctx, id, holdfast.ReadOutput{Process: p.ID, Follow: true}, func(chunk holdfast.OutputChunk) error {
		out.Write(chunk.Data)
		if killed {
			return nil
		}
		killed = true
		return s.server.restart()
	})
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("all output, exit %d", p.ExitCode),
		s.check(out.String() == "1\n2\n3\n4\n5\n6\n7\n8\n" && p.ExitCode == 7, "C6", "output %q, exit %d", out.String(), p.ExitCode)
}

func (s *show) lostDelete() (string, error) {
	c, f, err := s.faulty(once("DeleteSandbox", transport.LoseAnswer))
	if err != nil {
		return "", err
	}
	id := holdfast.SandboxID(s.sandbox[len(s.sandbox)-1])
	sb, err := c.DeleteSandbox(s.ctx, holdfast.MutateSandbox{ID: id})
	if err != nil {
		return "", err
	}
	return string(sb.State), s.check(f.Fired(transport.LoseAnswer) == 1 && sb.State == holdfast.SandboxDeleted, "A4", "%s", sb.State)
}
