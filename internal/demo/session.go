package main

import (
	"bytes"
	"fmt"
	"strings"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/client"
)

// sessions is work that goes on: an environment that is built, a session of it with
// tasks, and a fork of that.
func (s *show) sessions() error {
	s.title("An environment, a session, tasks and a fork")
	c, err := s.server.client()
	if err != nil {
		return err
	}
	var session, fork holdfast.Session
	var build holdfast.Build
	recipe := holdfast.Recipe{Base: "base", Setup: "echo setting up; mkdir -p /opt && echo built >/opt/greeting"}
	steps := []struct {
		what string
		do   func() (string, error)
	}{
		{"a build of an environment begins", func() (string, error) {
			if _, err := c.CreateEnvironment(s.ctx, holdfast.CreateEnvironment{Name: "demo", Recipe: recipe}); err != nil {
				return "", err
			}
			build, err = c.BuildEnvironment(s.ctx, holdfast.BuildEnvironment{RequestID: "demo-build", Environment: "demo"})
			return fmt.Sprintf("%s %s", build.ID, build.State), err
		}},
		{"a session waits for it, then is created", func() (string, error) {
			session, err = c.CreateSession(s.ctx, holdfast.CreateSession{RequestID: "demo-session", Environment: "demo"})
			s.session = append(s.session, session.ID)
			return fmt.Sprintf("%s %s", session.ID, session.State), err
		}},
		{"what the setup wrote", func() (string, error) {
			var log bytes.Buffer
			err := c.StreamBuildLog(s.ctx, holdfast.BuildLog{ID: build.ID, Follow: true}, func(chunk holdfast.OutputChunk) error { log.Write(chunk.Data); return nil })
			if err != nil {
				return "", err
			}
			if build, err = c.GetBuild(s.ctx, build.ID); err != nil {
				return "", err
			}
			return fmt.Sprintf("%s: %s", build.State, strings.TrimSpace(log.String())),
				s.check(build.State == holdfast.BuildReady && strings.Contains(log.String(), "setting up"), "E1", "%s, log %q", build.State, log.String())
		}},
		{"two tasks, in order", func() (string, error) {
			return s.tasks(c, session.ID,
				work{"first", "cat /opt/greeting; echo first >>/tmp/log", "built\n"}, work{"second", "echo second >>/tmp/log; cat /tmp/log", "first\nsecond\n"})
		}},
		{"suspend; a task wakes it", func() (string, error) {
			if _, err := c.SuspendSession(s.ctx, holdfast.MutateSession{ID: session.ID}); err != nil {
				return "", err
			}
			return s.task(c, session.ID, work{"woken", "echo awake", "awake\n"})
		}},
		{"the session is forked", func() (string, error) {
			fork, err = c.ForkSession(s.ctx, session.ID, holdfast.CreateSession{RequestID: "demo-session-fork"})
			if err != nil {
				return "", err
			}
			s.session = append(s.session, fork.ID)
			return s.task(c, fork.ID, work{"of-the-fork", "cat /tmp/log; rm /tmp/log", "first\nsecond\n"})
		}},
		{"the first one has its files still", func() (string, error) {
			return s.task(c, session.ID, work{"last", "cat /tmp/log", "first\nsecond\n"})
		}},
	}
	for _, step := range steps {
		if err := s.step(step.what, step.do); err != nil {
			return err
		}
	}
	return nil
}

// work is a task with the output that it should have.
type work struct{ requestID, script, want string }

func (s *show) submit(c *client.Client, session holdfast.SessionID, w work) (holdfast.Task, error) {
	return c.SubmitTask(s.ctx, holdfast.SubmitTask{RequestID: w.requestID, Session: session, Command: "sh", Args: []string{"-c", w.script}})
}

// tasks submits two tasks at once, and the first once more.
func (s *show) tasks(c *client.Client, session holdfast.SessionID, first, second work) (string, error) {
	var submitted []holdfast.TaskID
	for _, w := range []work{first, second, first} {
		t, err := s.submit(c, session, w)
		if err != nil {
			return "", err
		}
		submitted = append(submitted, t.ID)
	}
	if err := s.check(submitted[2] == submitted[0] && submitted[1] != submitted[0], "A3", "%v", submitted); err != nil {
		return "", err
	}
	if _, err := s.task(c, session, first); err != nil {
		return "", err
	}
	return s.task(c, session, second)
}

// task submits a task, or finds it again, follows it to its end and holds its output
// against what it should be.
func (s *show) task(c *client.Client, session holdfast.SessionID, w work) (string, error) {
	t, err := s.submit(c, session, w)
	if err != nil {
		return "", err
	}
	var out bytes.Buffer
	t, err = c.StreamTaskOutput(s.ctx, holdfast.TaskOutput{ID: t.ID, Follow: true}, func(chunk holdfast.OutputChunk) error { out.Write(chunk.Data); return nil })
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%s %s", t.ID, t.State),
		s.check(t.State == holdfast.TaskSucceeded && out.String() == w.want, "E3", "%s, output %q", t.State, out.String())
}
