package architecture

import (
	"bytes"
	"go/ast"
	"go/token"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// stranger is something of one person's machine, which does not belong into the
// repository. A pattern is slow; it is tried on files that have one of its words.
type stranger struct {
	what    string
	words   []string // lower case
	pattern *regexp.Regexp
}

func strangers() []stranger {
	return []stranger{
		{"a home directory", []string{"/home/", "/users/"}, regexp.MustCompile(`(^|[^\w.$}])/(home|Users)/[a-z]`)},
		{"a checkout in a scratch folder", []string{"/work", "/tmp/"}, regexp.MustCompile(`(^|[^\w.$}])/(work|workspace|workspaces|tmp)/[a-z]+/[a-z]`)},
		{"root's own Go files", []string{"/root"}, regexp.MustCompile(`/root[/](go|\.cache|\.config)\b`)},
		{"a private package registry", []string{"artifactory", "nexus", "goproxy"}, regexp.MustCompile(`(?i)\b[a-z0-9.-]*(artifactory|nexus|goproxy)\.[a-z0-9.-]+\.[a-z]{2,}`)},
		{"an address of a private mirror", []string{"goproxy"}, regexp.MustCompile(`(?i)GOPROXY\s*[:=]+\s*["']?https?://`)},
		{"a tool that wrote it", []string{"co-authored-by:", "generated with [", "copilot", "chatgpt"},
			regexp.MustCompile(`(?i)(co-authored-by:|generated with \[|\bcopilot\b|\bchatgpt\b)`)},
	}
}

// in returns the lines of text in which the stranger is, counted from 1.
func (s stranger) in(text string) map[int]string {
	lower := strings.ToLower(text)
	if !slices.ContainsFunc(s.words, func(w string) bool { return strings.Contains(lower, w) }) {
		return nil
	}
	out := map[int]string{}
	for i, line := range strings.Split(text, "\n") {
		if found := s.pattern.FindString(line); found != "" {
			out[i+1] = found
		}
	}
	return out
}

func TestNothingOfOneMachineIsInTheRepository(t *testing.T) {
	root := load(t).root
	here, all := machineNames(t, root), strangers()
	for _, name := range tracked(t, root) {
		if strings.HasPrefix(name, "internal/architecture/tidy_test.go") {
			continue
		}
		text, err := os.ReadFile(filepath.Join(root, name))
		if os.IsNotExist(err) {
			continue // deleted, not yet committed
		}
		if err != nil {
			t.Error(err)
			continue
		}
		if bytes.IndexByte(text, 0) >= 0 {
			t.Errorf("%s is a binary", name)
			continue
		}
		for _, one := range all {
			for line, found := range one.in(string(text)) {
				t.Errorf("%s:%d: %s: %s", name, line, one.what, found)
			}
		}
		for what, its := range here {
			if bytes.Contains(text, []byte(its)) {
				t.Errorf("%s: %s", name, what)
			}
		}
	}
}

// machineNames are the names that only this machine could have put in.
func machineNames(t *testing.T, root string) map[string]string {
	t.Helper()
	out := map[string]string{}
	if strings.Count(root, "/") > 1 {
		out["the directory of this checkout"] = root + "/"
	}
	proxies, err := exec.Command("go", "env", "GOPROXY").Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, proxy := range strings.FieldsFunc(string(proxies), func(r rune) bool { return strings.ContainsRune(",|\n", r) }) {
		u, err := url.Parse(proxy)
		if err == nil && u.Host != "" && !strings.HasSuffix(u.Host, ".golang.org") && !strings.HasPrefix(u.Host, "localhost") {
			out["the host of this machine's module proxy"] = u.Hostname()
		}
	}
	return out
}

func tracked(t *testing.T, root string) []string {
	t.Helper()
	cmd := exec.Command("git", "ls-files", "-z")
	cmd.Dir = root
	raw, err := cmd.Output()
	if err != nil {
		t.Fatalf("list the tracked files: %v", err)
	}
	names := strings.Split(strings.TrimRight(string(raw), "\x00"), "\x00")
	if len(names) < 100 {
		t.Fatalf("only %d tracked files: is this the repository?", len(names))
	}
	return names
}

// sleepers may call time.Sleep, each because the system offers no signal for
// what it waits for.
var sleepers = map[string]string{
	"guestagent/system_test.go":       "stands for a disk that takes its time; nothing waits by it",
	"guestagent/main_test.go":         "a bounded look at /proc: nothing tells when another process became a zombie",
	"cmd/holdfast-guest/main_test.go": "a bounded look at a process that is not the test's own child",
	"rpc/guest/guest_test.go":         "a bounded look at what the other side of a cut connection did",
}

// Tests wait for signals, with a deadline. In a bubble of testing/synctest time
// is virtual, so that sleeping there is exact.
func TestNoTestSleeps(t *testing.T) {
	used := map[string]bool{}
	for _, p := range load(t).ours {
		for _, f := range p.files {
			if f.generated || imports(f, "testing/synctest") {
				continue
			}
			for _, call := range calls(f, "time.Sleep") {
				used[f.name] = true
				if sleepers[f.name] == "" {
					t.Errorf("%s: time.Sleep: wait for a signal, with a deadline, or use testing/synctest", f.at(call))
				}
			}
		}
	}
	for name := range sleepers {
		if !used[name] {
			t.Errorf("%s is allowed to sleep and does not: take it off the list", name)
		}
	}
}

// A skipped test says what the machine lacks; make test lists it by that.
func TestEverySkipSaysWhy(t *testing.T) {
	for _, p := range load(t).ours {
		for _, f := range p.files {
			for _, name := range []string{"Skip", "Skipf", "SkipNow"} {
				for _, receiver := range []string{"t", "b", "tb"} {
					for _, call := range calls(f, receiver+"."+name) {
						if !reasoned(call) {
							t.Errorf("%s: %s without a reason", f.at(call), name)
						}
					}
				}
			}
		}
	}
}

// reasoned reports an argument with words in it.
func reasoned(call *ast.CallExpr) bool {
	words := false
	for _, arg := range call.Args {
		ast.Inspect(arg, func(n ast.Node) bool {
			if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING && strings.Count(lit.Value, " ") > 0 {
				words = true
			}
			_, variable := n.(*ast.Ident) // an error, or a function's answer
			words = words || variable
			return !words
		})
	}
	return words
}

func imports(f *file, path string) bool {
	return slices.ContainsFunc(f.syntax.Imports, func(i *ast.ImportSpec) bool {
		got, err := strconv.Unquote(i.Path.Value)
		return err == nil && got == path
	})
}

// calls finds the calls of package.Function, or variable.Method, in a file.
func calls(f *file, name string) []*ast.CallExpr {
	var out []*ast.CallExpr
	ast.Inspect(f.syntax, func(n ast.Node) bool {
		if call, ok := n.(*ast.CallExpr); ok && dotted(call) == name {
			out = append(out, call)
		}
		return true
	})
	return out
}
