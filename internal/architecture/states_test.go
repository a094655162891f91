package architecture

import (
	"flag"
	"fmt"
	"go/ast"
	"go/token"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/holdfast-dev/holdfast"
)

var update = flag.Bool("update", false, "draw docs/states.md anew from the root's tables")

// machine is one of the root's state tables, as text.
type machine struct {
	name    string // of its drawing in docs/states.md
	goType  string // whose constants give the order
	follows map[string][]string
}

func machines() []machine {
	return []machine{
		{"sandbox", "SandboxState", table2text(holdfast.SandboxTransitions())},
		{"instance", "InstanceState", table2text(holdfast.InstanceTransitions())},
		{"session", "SessionState", table2text(holdfast.SessionTransitions())},
		{"checkpoint", "CheckpointState", table2text(holdfast.CheckpointTransitions())},
		{"task", "TaskState", table2text(holdfast.TaskTransitions())},
		{"build", "BuildState", table2text(holdfast.BuildTransitions())},
		{"operation", "OperationState", table2text(holdfast.OperationTransitions())},
		{"hook-action", "HookActionState", table2text(holdfast.HookActionTransitions())},
		{"host", "HostHealth", table2text(holdfast.HostHealthTransitions())},
		{"host-duty", "HostDuty", table2text(holdfast.HostDutyTransitions())},
		{"checkpoint-copy", "CopyState", table2text(holdfast.CopyTransitions())},
	}
}

func table2text[S ~string](transitions map[S][]S) map[string][]string {
	out := map[string][]string{}
	for from, all := range transitions {
		out[string(from)] = []string{}
		for _, to := range all {
			out[string(from)] = append(out[string(from)], string(to))
		}
	}
	return out
}

func TestStates_EveryTableNamesEveryStateOfItsType(t *testing.T) {
	order := declared(t)
	for _, m := range machines() {
		states := order[m.goType]
		if len(states) == 0 {
			t.Fatalf("no constants of type %s", m.goType)
		}
		for _, s := range states {
			if _, ok := m.follows[s]; !ok {
				t.Errorf("%s: %s has no row in its table", m.name, s)
			}
		}
		if len(m.follows) != len(states) {
			t.Errorf("%s: %d rows for %d states", m.name, len(m.follows), len(states))
		}
		for from, all := range m.follows {
			for _, to := range all {
				if _, ok := m.follows[to]; !ok || to == from {
					t.Errorf("%s: %s is said to follow %s", m.name, to, from)
				}
			}
		}
	}
}

func TestStates_TheDrawingsAreTheTables(t *testing.T) {
	path := filepath.Join(load(t).root, "docs", "states.md")
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	order, text := declared(t), string(raw)
	for _, m := range machines() {
		begin, end := "<!-- drawn: "+m.name+" -->\n", "<!-- end: "+m.name+" -->"
		before, rest, found := strings.Cut(text, begin)
		drawn, after, closed := strings.Cut(rest, end)
		if !found || !closed {
			t.Errorf("docs/states.md has no place for the drawing of %s: put %q and %q there", m.name, begin, end)
			continue
		}
		want := draw(m, order[m.goType])
		if drawn != want && !*update {
			t.Errorf("docs/states.md draws %s otherwise than its table; go test ./internal/architecture -run States -update\n%s", m.name, want)
		}
		text = before + begin + want + end + after
	}
	if *update {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// draw is a table as a mermaid diagram, states in the order of their constants.
func draw(m machine, states []string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "```mermaid\nstateDiagram-v2\n    [*] --> %s\n", states[0])
	for _, from := range states {
		for _, to := range m.follows[from] {
			fmt.Fprintf(&b, "    %s --> %s\n", from, to)
		}
		if len(m.follows[from]) == 0 {
			fmt.Fprintf(&b, "    %s --> [*]\n", from)
		}
	}
	b.WriteString("```\n")
	return b.String()
}

// declared lists the string constants of the root, by type, in source order.
func declared(t *testing.T) map[string][]string {
	t.Helper()
	out := map[string][]string{}
	for _, p := range load(t).ours {
		if p.path != "." {
			continue
		}
		for _, f := range p.source() {
			for _, d := range f.syntax.Decls {
				if g, ok := d.(*ast.GenDecl); ok && g.Tok == token.CONST {
					constantsOf(g, out)
				}
			}
		}
	}
	return out
}

func constantsOf(g *ast.GenDecl, out map[string][]string) {
	for _, spec := range g.Specs {
		s := spec.(*ast.ValueSpec)
		typ, ok := s.Type.(*ast.Ident)
		if !ok || len(s.Values) != 1 {
			continue
		}
		if lit, ok := s.Values[0].(*ast.BasicLit); ok && lit.Kind == token.STRING {
			if text, err := strconv.Unquote(lit.Value); err == nil {
				out[typ.Name] = append(out[typ.Name], text)
			}
		}
	}
}
