package acceptance

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/client"
	"github.com/holdfast-dev/holdfast/internal/testenv"
)

func (s *system) take(requestID string, id holdfast.SandboxID) holdfast.Checkpoint {
	s.t.Helper()
	c, err := s.client.CreateCheckpoint(s.t.Context(), holdfast.CreateCheckpoint{RequestID: requestID, Source: string(id)})
	if err != nil || c.State != holdfast.CheckpointReady {
		s.t.Fatalf("checkpoint %s: %s %v\n%s", requestID, c.State, err, s.Log())
	}
	return c
}

func (s *system) fork(requestID string, from holdfast.CheckpointID) holdfast.Sandbox {
	s.t.Helper()
	sb, err := s.client.CreateSandbox(s.t.Context(), holdfast.CreateSandbox{RequestID: requestID, Source: from})
	s.keep(sb.ID)
	if err != nil || sb.State != holdfast.SandboxReady {
		s.t.Fatalf("fork %s: %s %v %+v\n%s", requestID, sb.State, err, sb.Failure, s.Log())
	}
	return sb
}

// blobs are the objects below a server's default blob store.
func (s *system) blobs() (files []string) {
	s.t.Helper()
	root := filepath.Join(s.DataDir, "blobs", "checkpoints")
	err := filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			files = append(files, path)
		}
		return err
	})
	if err != nil && !os.IsNotExist(err) {
		s.t.Fatal(err)
	}
	return files
}

// contract: E4, A3; traps T50, T53. On real containers: what is on the disk at the
// checkpoint is in each fork, what comes later in one is in no other, nothing of the
// source's identity is in any, and the checkpoint can go while its forks live.
func TestE4_ForksBeginWithTheDiskOfTheirSourceAndGoTheirOwnWays(t *testing.T) {
	s := serve(t)
	source := s.create("source")
	s.wantOutput(source.ID, "mkdir -p /srv/deep && echo one >/srv/deep/a && echo two >/srv/b && rm -f /etc/motd && ln -s deep/a /srv/link && echo ok", "ok")
	c := s.take("c", source.ID)
	if again := s.take("c", source.ID); again.ID != c.ID || c.Size == 0 {
		t.Errorf("a repeat is %+v", again)
	}
	s.wantOutput(source.ID, "echo later >/srv/b && echo new >/srv/c && cat /srv/b", "later")

	one, two := s.fork("one", c.ID), s.fork("two", c.ID)
	for _, fork := range []holdfast.Sandbox{one, two} {
		s.wantOutput(fork.ID, "cat /srv/link /srv/b; ls /srv/c 2>/dev/null; true", "one\ntwo")
	}
	s.wantOutput(one.ID, "echo mine >/srv/b; rm -r /srv/deep; cat /srv/b", "mine")
	s.wantOutput(two.ID, "cat /srv/b /srv/deep/a", "two\none")
	s.wantOutput(source.ID, "cat /srv/b /srv/c", "later\nnew")
	if out, _, _ := s.sh(one.ID, "cat /etc/hostname /etc/hosts 2>/dev/null; hostname"); strings.Contains(out, string(source.Instance)) {
		t.Errorf("the fork goes by its source's name: %q", out)
	}

	second := s.take("second", one.ID)
	if _, err := s.client.DeleteCheckpoint(t.Context(), holdfast.MutateCheckpoint{ID: c.ID}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.client.CreateSandbox(t.Context(), holdfast.CreateSandbox{RequestID: "late", Source: c.ID}); holdfast.ReasonOf(err) != holdfast.ReasonState {
		t.Errorf("a deleted checkpoint was forked: %v", err)
	}
	if _, err := s.client.DeleteSandbox(t.Context(), holdfast.MutateSandbox{ID: source.ID}); err != nil {
		t.Fatal(err)
	}
	deep := s.fork("deep", second.ID) // of a fork, whose source and first checkpoint are gone
	s.wantOutput(deep.ID, "cat /srv/b; ls /srv/deep 2>/dev/null; true", "mine")

	if _, err := s.client.DeleteCheckpoint(t.Context(), holdfast.MutateCheckpoint{ID: second.ID}); err != nil {
		t.Fatal(err)
	}
	if len(s.blobs()) == 0 {
		t.Error("nothing is left of what living forks are made of")
	}
	for _, sb := range []holdfast.Sandbox{one, two, deep} {
		if _, err := s.client.DeleteSandbox(t.Context(), holdfast.MutateSandbox{ID: sb.ID}); err != nil {
			t.Fatal(err)
		}
	}
	if !testenv.Eventually(20*time.Second, func() bool { return len(s.blobs()) == 0 }) {
		t.Errorf("nothing is made of them, and they are still there: %v\n%s", s.blobs(), s.Log())
	}
}

// contract: E4. A suspended sandbox is copied as it stands still, and stays so; its
// fork runs; and a server that is killed while it copies goes on afterwards.
func TestE4_ASuspendedSandboxIsForkedAndStaysSuspended(t *testing.T) {
	s := serve(t)
	source := s.create("source")
	s.wantOutput(source.ID, "echo kept >/kept; cat /kept", "kept")
	if _, err := s.client.SuspendSandbox(t.Context(), holdfast.MutateSandbox{ID: source.ID}); err != nil {
		t.Fatal(err)
	}
	fork, err := s.client.ForkSandbox(t.Context(), source.ID, holdfast.CreateSandbox{RequestID: "f"})
	s.keep(fork.ID)
	if err != nil || fork.State != holdfast.SandboxReady {
		t.Fatalf("%+v, %v\n%s", fork, err, s.Log())
	}
	s.wantOutput(fork.ID, "cat /kept", "kept")
	if is := s.get(source.ID); is.State != holdfast.SandboxSuspended || is.Operation != nil {
		t.Errorf("the source is %s, %+v", is.State, is.Operation)
	}
	if _, err := s.client.ResumeSandbox(t.Context(), holdfast.MutateSandbox{ID: source.ID}); err != nil {
		t.Fatal(err)
	}
	s.wantOutput(source.ID, "cat /kept", "kept")
	page, err := s.client.ListCheckpoints(t.Context(), holdfast.ListCheckpoints{})
	if err != nil || len(page.Checkpoints) != 0 {
		t.Errorf("a fork left a checkpoint: %+v, %v", page, err)
	}
}

// contract: A15, E4. The server dies while it takes a checkpoint of much; the repeat
// of the same request finishes it.
func TestA15_ACheckpointOutlivesItsServer(t *testing.T) {
	s := serve(t)
	source := s.create("source")
	s.wantOutput(source.ID, "dd if=/dev/urandom of=/big bs=1M count=64 2>/dev/null; sha256sum /big | cut -c1-64 >/sum; echo ok", "ok")
	in := holdfast.CreateCheckpoint{RequestID: "c", Source: string(source.ID)}
	taken := make(chan error, 1)
	go func() {
		_, err := s.dial(client.WithOverallTimeout(5*time.Second)).CreateCheckpoint(t.Context(), in)
		taken <- err
	}()
	recorded := func() bool {
		page, err := s.client.ListCheckpoints(t.Context(), holdfast.ListCheckpoints{})
		return err == nil && len(page.Checkpoints) == 1
	}
	if !testenv.Eventually(10*time.Second, recorded) {
		t.Fatal("it is not recorded")
	}
	s.Kill()
	<-taken
	s.Start()
	s.client = s.dial()
	c := s.take("c", source.ID)
	fork := s.fork("f", c.ID)
	s.wantOutput(fork.ID, `[ "$(sha256sum /big | cut -c1-64)" = "$(cat /sum)" ] && echo whole`, "whole")
	s.wantOutput(source.ID, "echo runs", "runs")
}
