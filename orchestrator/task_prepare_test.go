package orchestrator

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/holdfast-dev/holdfast"
)

// contract: E2. What a session's preparation runs, held against a real git and a real
// repository: branches, tags, commits, what does not exist, and names that a shell
// would take for something else.
func TestE2_APreparationFetchesARepositoryAtARef(t *testing.T) {
	source := t.TempDir()
	git := func(args ...string) string {
		t.Helper()
		cmd := exec.Command("git", append([]string{"-C", source, "-c", "user.name=a", "-c", "user.email=a@example.com"}, args...)...)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("git %v: %v\n%s", args, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	commit := func(content string) string {
		t.Helper()
		if err := os.WriteFile(filepath.Join(source, "file"), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		git("add", "file")
		git("commit", "-q", "-m", content)
		return git("rev-parse", "HEAD")
	}
	git("init", "-q", "-b", "main")
	first := commit("first")
	git("tag", "v1")
	git("checkout", "-q", "-b", "it's-s")
	commit("branch")
	git("checkout", "-q", "main")
	commit("newest")

	run := func(r holdfast.Repository) (content, output string, err error) {
		t.Helper()
		at := filepath.Join(t.TempDir(), "workspace")
		cmd := exec.Command("sh", "-c", strings.ReplaceAll(prepareScript(r), holdfast.Workspace, quoted(at)))
		out, err := cmd.CombinedOutput()
		raw, readErr := os.ReadFile(filepath.Join(at, "file"))
		if err == nil && readErr != nil {
			t.Errorf("%+v: %v", r, readErr)
		}
		return string(raw), string(out), err
	}
	url := "file://" + source
	for ref, want := range map[string]string{"": "newest", "main": "newest", "v1": "first", first: "first", first[:12]: "first", "it's-s": "branch"} {
		got, out, err := run(holdfast.Repository{URL: url, Ref: ref})
		if err != nil || got != want {
			t.Errorf("at %q there is %q, want %q: %v\n%s", ref, got, want, err, out)
		}
	}
	for _, bad := range []holdfast.Repository{
		{URL: url, Ref: "no-such-ref"}, {URL: url + "/not/there"}, {URL: url, Ref: "$(touch " + source + "/broken)"}, {URL: "'; touch " + source + "/broken; '"},
	} {
		if got, out, err := run(bad); err == nil || out == "" {
			t.Errorf("%+v is fetched: %q, and it says %q", bad, got, out)
		}
	}
	if _, err := os.Stat(filepath.Join(source, "broken")); err == nil {
		t.Error("a name was taken for a command")
	}
}
