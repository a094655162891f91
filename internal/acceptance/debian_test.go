package acceptance

import (
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/client"
	"github.com/holdfast-dev/holdfast/internal/testenv"
)

// A Debian base is built at its first use, once for all who wait; meanwhile the
// operation says that it waits for the image, and holds no claim.
func TestADebianSandboxIsPreparedOnceAndHasItsTools(t *testing.T) {
	if testing.Short() {
		t.Skip("takes a minute and a Debian mirror: not with -short")
	}
	s := serve(t)
	c := s.dial(client.WithOverallTimeout(8 * time.Minute))
	created := make([]holdfast.Sandbox, 2)
	var wg sync.WaitGroup
	for i, id := range []string{"first", "second"} {
		wg.Go(func() {
			sb, err := c.CreateSandbox(t.Context(), holdfast.CreateSandbox{RequestID: id, Environment: "debian"})
			if err != nil {
				t.Errorf("create: %v\n%s", err, s.Log())
			}
			created[i] = sb
		})
	}
	var op *holdfast.Operation
	waits := testenv.Eventually(time.Minute, func() bool {
		page, err := s.client.ListSandboxes(t.Context(), listAll())
		if err != nil {
			return false
		}
		for _, sb := range page.Sandboxes {
			if op = sb.Operation; op != nil && op.WaitsFor == "image" && op.Claim == nil {
				return true
			}
		}
		return false
	})
	wg.Wait()
	if !waits {
		t.Errorf("no operation said that it waits for the image, without a claim; the last: %+v", op)
	}
	for _, sb := range created {
		s.keep(sb.ID)
		if sb.State != holdfast.SandboxReady {
			t.Fatalf("%s is %s", sb.ID, sb.State)
		}
	}
	for _, tool := range []string{"bash --version", "git --version", "python3 --version", "test -s /etc/ssl/certs/ca-certificates.crt"} {
		if out, errs, code := s.sh(created[0].ID, tool); code != 0 {
			t.Errorf("%s: exit %d %s %s", tool, code, out, errs)
		}
	}
	s.fetchesRepositories()
}

// fetchesRepositories shows, on a Debian base with git, that a session's repository is
// in its workspace before its first task, at a tag, a branch or any commit, and that one
// that cannot be had fails the session with what git said. The repository is in the
// guest, under the address of another.
func (s *system) fetchesRepositories() {
	s.t.Helper()
	s.environment(`name: git
base: debian
repository: {url: https://repository.test/team/app.git, ref: v1}
setup: |
  git config --system user.email nobody@repository.test
  git config --system user.name nobody
  git config --system init.defaultBranch main
  git config --system url.file:///srv/app.insteadOf https://repository.test/team/app.git
  git init -q /srv/app && cd /srv/app
  for n in one two three; do echo $n > file && git add file && git commit -q -m $n; done
  git tag v1 HEAD~2
  git rev-parse HEAD~1 > /srv/second
`)
	if b, log := s.built("git", "git"); b.State != holdfast.BuildReady {
		s.t.Fatalf("%+v %q", b.Failure, log)
	}
	session := func(requestID string, repository *holdfast.Repository) holdfast.Session {
		s.t.Helper()
		se, err := s.client.CreateSession(s.t.Context(), holdfast.CreateSession{RequestID: requestID, Environment: "git", Repository: repository})
		if err != nil {
			s.t.Fatalf("%v\n%s", err, s.Log())
		}
		s.endsSession(se.ID)
		return se
	}
	const url = "https://repository.test/team/app.git"
	first := session("tag", nil)
	second, _, _ := s.sh(first.Sandbox, "cat /srv/second")
	for name, c := range map[string]struct {
		session holdfast.Session
		want    string
	}{
		"a tag, as the recipe says": {first, "one\n"},
		"a branch":                  {session("branch", &holdfast.Repository{URL: url, Ref: "main"}), "three\n"},
		"no reference":              {session("none", &holdfast.Repository{URL: url}), "three\n"},
		"any commit":                {session("commit", &holdfast.Repository{URL: url, Ref: strings.TrimSpace(second)}), "two\n"},
	} {
		task := s.submit("cat-"+string(c.session.ID), c.session.ID, "cd "+holdfast.Workspace+" && cat file && git status --porcelain", 0)
		if task, out := s.follow(task.ID); task.State != holdfast.TaskSucceeded || out != c.want {
			s.t.Errorf("%s: %s, %q, want %q: %+v", name, task.State, out, c.want, task.Failure)
		}
	}
	missing := session("missing", &holdfast.Repository{URL: url, Ref: "nothing"})
	if !testenv.Eventually(time.Minute, func() bool {
		var err error
		missing, err = s.client.GetSession(s.t.Context(), missing.ID)
		return err == nil && missing.State == holdfast.SessionFailed
	}) || missing.Failure.Reason != holdfast.ReasonPreparation || !strings.Contains(missing.Failure.Message+missing.Failure.LogTail, "nothing") {
		s.t.Errorf("a reference that is not there: %s, %+v", missing.State, missing.Failure)
	}
}
