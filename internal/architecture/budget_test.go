package architecture

import (
	"cmp"
	"fmt"
	"go/ast"
	"slices"
	"strings"
	"testing"
)

// The budgets. Past one, split by meaning, never by size alone.
const (
	fileMedian    = 150 // lines
	fileMost      = 800 // lines, tests included
	functionMost  = 100 // lines
	functionP90   = 45  // lines
	interfaceMost = 8   // methods
	paramsMost    = 5   // beside the context, which says nothing about what a function does
)

// larger names what may be larger than its budget, and why.
var larger = map[string]struct {
	most int
	why  string
}{
	"runtime.Driver": {14, "a runtime's whole life cycle; a driver that lacks half of it is none"},
}

// sized is one thing with its size.
type sized struct {
	name string
	size int
}

func TestBudgets(t *testing.T) {
	var files, tests, functions, interfaces, params []sized
	for _, p := range load(t).ours {
		for _, f := range p.files {
			switch {
			case f.generated:
			case f.test:
				tests = append(tests, sized{f.name, f.lines})
			default:
				files = append(files, sized{f.name, f.lines})
				m := measured(p, f)
				functions, interfaces, params = append(functions, m.functions...), append(interfaces, m.interfaces...), append(params, m.params...)
			}
		}
	}
	report(t, "lines of a file", files, fileMost)
	report(t, "lines of a test file", tests, fileMost)
	report(t, "lines of a function", functions, functionMost)
	report(t, "methods of an interface", interfaces, interfaceMost)
	report(t, "parameters of a function", params, paramsMost)
	if got := quantile(files, 50); got > fileMedian {
		t.Errorf("the median file has %d lines; the budget is %d", got, fileMedian)
	}
	if got := quantile(functions, 90); got > functionP90 {
		t.Errorf("nine in ten functions have up to %d lines; the budget is %d", got, functionP90)
	}
}

// report prints one line about all, and fails what is past the budget by itself.
func report(t *testing.T, what string, all []sized, most int) {
	t.Helper()
	slices.SortFunc(all, func(a, b sized) int { return cmp.Compare(a.size, b.size) })
	if len(all) == 0 {
		t.Errorf("%s: nothing was measured", what)
		return
	}
	largest := all[len(all)-1]
	t.Logf("%-24s %5d measured, median %d, p90 %d, most %d (%s)", what, len(all), quantile(all, 50), quantile(all, 90), largest.size, largest.name)
	for _, s := range all {
		allowed := most
		if l, ok := larger[s.name]; ok {
			allowed = l.most
		}
		if s.size > allowed {
			t.Errorf("%s: %s has %d; the budget is %d", what, s.name, s.size, allowed)
		}
	}
}

func quantile(sorted []sized, percent int) int {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(len(sorted)*percent/100, len(sorted)-1)].size
}

type measures struct{ functions, interfaces, params []sized }

func measured(p pkg, f *file) measures {
	var m measures
	ast.Inspect(f.syntax, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl:
			name := fmt.Sprintf("%s %s", f.at(n), n.Name.Name)
			lines := f.set.Position(n.End()).Line - f.set.Position(n.Pos()).Line + 1
			m.functions = append(m.functions, sized{name, lines})
			m.params = append(m.params, sized{name, parameters(n.Type)})
		case *ast.TypeSpec:
			if i, ok := n.Type.(*ast.InterfaceType); ok {
				m.interfaces = append(m.interfaces, sized{p.Name + "." + n.Name.Name, methods(i)})
			}
		}
		return true
	})
	return m
}

func parameters(f *ast.FuncType) int {
	count := 0
	for _, field := range f.Params.List {
		if dotted(field.Type) == "context.Context" {
			continue
		}
		count += max(1, len(field.Names))
	}
	return count
}

// methods counts an interface's own; what it embeds is counted where it is declared.
func methods(i *ast.InterfaceType) int {
	count := 0
	for _, field := range i.Methods.List {
		count += len(field.Names)
	}
	return count
}

func TestBudgets_ExceptionsHaveReasonsAndExist(t *testing.T) {
	var have []string
	for _, p := range load(t).ours {
		for _, f := range p.source() {
			for _, i := range measured(p, f).interfaces {
				have = append(have, i.name)
			}
		}
	}
	for name, l := range larger {
		if strings.TrimSpace(l.why) == "" || !slices.Contains(have, name) {
			t.Errorf("the exception for %s has no reason, or nothing has that name", name)
		}
	}
}
