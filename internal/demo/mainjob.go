package main

import (
	"bytes"
	"fmt"
	"strings"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/client"
)

// mainJob is what a person wants of a sandbox, from create to delete.
func (s *show) mainJob() error {
	s.title("The main job")
	c, err := s.server.client()
	if err != nil {
		return err
	}
	in := holdfast.CreateSandbox{RequestID: "demo-1", Environment: "base", Name: "demo"}
	var id holdfast.SandboxID
	steps := []struct {
		what string
		do   func() (string, error)
	}{
		{"create, request id demo-1", func() (string, error) {
			sb, err := c.CreateSandbox(s.ctx, in)
			id = sb.ID
			s.sandbox = append(s.sandbox, string(id))
			return fmt.Sprintf("%s %s", sb.ID, sb.State), err
		}},
		{"the same create again", func() (string, error) {
			sb, err := c.CreateSandbox(s.ctx, in)
			if err != nil {
				return "", err
			}
			return "the same sandbox", s.check(sb.ID == id, "A3", "%s and %s", sb.ID, id)
		}},
		{"the same id, other input", func() (string, error) {
			other := in
			other.Name = "another"
			_, err := c.CreateSandbox(s.ctx, other)
			return fmt.Sprintf("%s: %s differs", holdfast.CodeOf(err), holdfast.AsError(err).Details["fields"]),
				s.check(holdfast.CodeOf(err) == holdfast.AlreadyExists, "A3", "%v", err)
		}},
		{"exec, output as it comes", func() (string, error) {
			return s.exec(c, id, "for i in 1 2 3; do echo line $i; done", "line 1\nline 2\nline 3\n")
		}},
		{"write a file", func() (string, error) {
			w, err := c.Upload(s.ctx, id, holdfast.WriteFile{Path: "/tmp/notes.txt"}, strings.NewReader("hold fast\n"))
			return fmt.Sprintf("%d bytes, sha256 %.12s…", w.Bytes, w.SHA256), err
		}},
		{"suspend", func() (string, error) {
			sb, err := c.SuspendSandbox(s.ctx, holdfast.MutateSandbox{ID: id})
			return string(sb.State), err
		}},
		{"resume", func() (string, error) {
			sb, err := c.ResumeSandbox(s.ctx, holdfast.MutateSandbox{ID: id})
			return string(sb.State), err
		}},
		{"read the file back", func() (string, error) {
			var got bytes.Buffer
			if _, err := c.Download(s.ctx, id, holdfast.ReadFile{Path: "/tmp/notes.txt"}, &got); err != nil {
				return "", err
			}
			return strings.TrimSpace(got.String()), s.check(got.String() == "hold fast\n", "A14", "read %q", got.String())
		}},
		{"fork: the disk so far, an identity of its own", func() (string, error) {
			fork, err := c.ForkSandbox(s.ctx, id, holdfast.CreateSandbox{RequestID: "demo-fork"})
			if err != nil {
				return "", err
			}
			s.sandbox = append(s.sandbox, string(fork.ID))
			got, err := s.exec(c, fork.ID, "cat /tmp/notes.txt; echo mine >/tmp/notes.txt", "hold fast\n")
			if err != nil {
				return got, err
			}
			return string(fork.ID), s.check(fork.ID != id, "E4", "the fork is its source")
		}},
		{"the source saw nothing of its fork", func() (string, error) {
			return s.exec(c, id, "cat /tmp/notes.txt", "hold fast\n")
		}},
		{"delete", func() (string, error) {
			sb, err := c.DeleteSandbox(s.ctx, holdfast.MutateSandbox{ID: id})
			return string(sb.State), err
		}},
		{"the create once more, after the delete", func() (string, error) {
			sb, err := c.CreateSandbox(s.ctx, in)
			if err != nil {
				return "", err
			}
			return "its tombstone, nothing new", s.check(sb.ID == id && sb.State == holdfast.SandboxDeleted, "A3", "%s %s", sb.ID, sb.State)
		}},
	}
	for _, step := range steps {
		if err := s.step(step.what, step.do); err != nil {
			return err
		}
	}
	return nil
}

// exec runs a shell line and holds its output against what it should be.
func (s *show) exec(c *client.Client, id holdfast.SandboxID, script, want string) (string, error) {
	var out bytes.Buffer
	p, err := c.Exec(s.ctx, id, holdfast.StartProcess{Command: "sh", Args: []string{"-c", script}}, client.ExecIO{
		Output: func(chunk holdfast.OutputChunk) error { out.Write(chunk.Data); return nil }})
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%d bytes, exit %d", out.Len(), p.ExitCode),
		s.check(out.String() == want && p.ExitCode == 0, "A14", "output %q, exit %d", out.String(), p.ExitCode)
}

// deleteAll deletes whatever the demo made and did not delete.
func (s *show) deleteAll() error {
	c, err := s.server.client()
	if err != nil {
		return err
	}
	for _, id := range s.session {
		if _, err := c.DeleteSession(s.ctx, holdfast.MutateSession{ID: id, Force: true}); err != nil {
			return fmt.Errorf("delete %s: %w", id, err)
		}
	}
	for _, id := range s.sandbox {
		if id == "" {
			continue
		}
		if _, err := c.DeleteSandbox(s.ctx, holdfast.MutateSandbox{ID: holdfast.SandboxID(id)}); err != nil {
			return fmt.Errorf("delete %s: %w", id, err)
		}
	}
	return nil
}
