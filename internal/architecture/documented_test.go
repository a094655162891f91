package architecture

import (
	"go/ast"
	"go/token"
	"regexp"
	"slices"
	"strings"
	"testing"
)

func TestEveryPackageHasOneDocComment(t *testing.T) {
	for _, p := range load(t).ours {
		var in []string
		for _, f := range p.source() {
			if f.syntax.Doc != nil && strings.TrimSpace(f.syntax.Doc.Text()) != "" {
				in = append(in, f.name)
			}
		}
		switch generated := len(p.source()) == 0; {
		case generated:
		case len(in) == 0:
			t.Errorf("%s has no package comment", p.path)
		case len(in) > 1:
			t.Errorf("%s has %d package comments: %s", p.path, len(in), strings.Join(in, ", "))
		}
	}
}

var vague = []string{"util", "utils", "common", "types", "models", "pkg", "helpers", "misc"}

func TestNoPackageIsNamedForNothing(t *testing.T) {
	for _, p := range load(t).ours {
		for part := range strings.SplitSeq(p.path, "/") {
			if slices.Contains(vague, part) {
				t.Errorf("%s: %q says nothing about what is in it", p.path, part)
			}
		}
	}
}

// undocumentedMost is what a package may leave undocumented, in percent of its
// exported names.
const undocumentedMost = 5

func TestExportedNamesAreDocumented(t *testing.T) {
	total, bare := 0, 0
	for _, p := range load(t).ours {
		var names, missing []string
		for _, f := range p.source() {
			for _, d := range f.syntax.Decls {
				n, m := exported(f, d)
				names, missing = append(names, n...), append(missing, m...)
			}
		}
		total, bare = total+len(names), bare+len(missing)
		if len(missing)*100 > undocumentedMost*len(names) {
			t.Errorf("%s documents %d of %d exported names; these it does not:\n\t%s",
				p.path, len(names)-len(missing), len(names), strings.Join(missing, "\n\t"))
		}
	}
	t.Logf("%d exported names, %d of them without a comment", total, bare)
}

// exported lists a declaration's exported names, and those without a comment. A
// comment over a group covers the group.
func exported(f *file, d ast.Decl) (names, missing []string) {
	note := func(id *ast.Ident, documented bool) {
		if !id.IsExported() {
			return
		}
		names = append(names, id.Name)
		if !documented {
			missing = append(missing, f.at(id)+" "+id.Name)
		}
	}
	switch d := d.(type) {
	case *ast.FuncDecl:
		if d.Recv == nil || ast.IsExported(receiver(d)) {
			note(d.Name, d.Doc != nil)
		}
	case *ast.GenDecl:
		for _, spec := range d.Specs {
			switch s := spec.(type) {
			case *ast.TypeSpec:
				note(s.Name, s.Doc != nil || s.Comment != nil || d.Doc != nil)
			case *ast.ValueSpec:
				for _, id := range s.Names {
					note(id, s.Doc != nil || s.Comment != nil || d.Doc != nil)
				}
			}
		}
	}
	return names, missing
}

func receiver(d *ast.FuncDecl) string {
	e := d.Recv.List[0].Type
	for {
		switch at := e.(type) {
		case *ast.StarExpr:
			e = at.X
		case *ast.IndexExpr:
			e = at.X
		case *ast.IndexListExpr:
			e = at.X
		case *ast.Ident:
			return at.Name
		default:
			return ""
		}
	}
}

// constants are package variables that the language cannot make constant; each
// is set where it is declared and never again.
var constants = map[string]string{
	".:crockford":             "an encoding, immutable",
	"orchestrator:patience":   "a struct of two numbers",
	"internal/testenv:built":  "sync.OnceValues: the programs, built once for a test process",
	"internal/testenv:shared": "sync.OnceValues: a server for all tests of a process",
}

func TestNoInitAndNoMutablePackageVariables(t *testing.T) {
	used := map[string]bool{}
	for _, p := range load(t).ours {
		for _, f := range p.source() {
			for _, d := range f.syntax.Decls {
				if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil && fn.Name.Name == "init" {
					t.Errorf("%s: an init function: let the program call it", f.at(fn))
				}
				for _, id := range variables(d) {
					key := p.path + ":" + id.Name
					used[key] = true
					if constants[key] == "" {
						t.Errorf("%s: package variable %s: hand it over instead, or make it a function that returns a fresh one", f.at(id), id.Name)
					} else if where := assigned(p, id.Name); where != "" {
						t.Errorf("%s: %s is listed as constant and is changed here", where, key)
					}
				}
			}
		}
	}
	for key := range constants {
		if !used[key] {
			t.Errorf("%s is listed as a constant and does not exist", key)
		}
	}
}

// errorName is how errors are called; nobody sets one after it is declared.
var errorName = regexp.MustCompile(`^[eE]rr[A-Z]`)

// variables lists what a declaration makes that could change: all but errors,
// embedded files, compiled expressions and checks that a type has an interface.
func variables(d ast.Decl) []*ast.Ident {
	g, ok := d.(*ast.GenDecl)
	if !ok || g.Tok != token.VAR {
		return nil
	}
	var out []*ast.Ident
	for _, spec := range g.Specs {
		s := spec.(*ast.ValueSpec)
		for i, id := range s.Names {
			var value ast.Expr
			if i < len(s.Values) {
				value = s.Values[i]
			}
			if id.Name == "_" || errorName.MatchString(id.Name) || dotted(s.Type) == "embed.FS" || dotted(value) == "regexp.MustCompile" {
				continue
			}
			out = append(out, id)
		}
	}
	return out
}

// dotted is package.Name of a type or of the function that a value calls.
func dotted(e ast.Expr) string {
	if call, ok := e.(*ast.CallExpr); ok {
		e = call.Fun
	}
	sel, ok := e.(*ast.SelectorExpr)
	if !ok {
		return ""
	}
	x, ok := sel.X.(*ast.Ident)
	if !ok {
		return ""
	}
	return x.Name + "." + sel.Sel.Name
}

// assigned says where a package variable of this name is set again.
func assigned(p pkg, name string) (where string) {
	for _, f := range p.source() {
		ast.Inspect(f.syntax, func(n ast.Node) bool {
			if a, ok := n.(*ast.AssignStmt); ok && a.Tok != token.DEFINE {
				for _, left := range a.Lhs {
					if base(left) == name {
						where = f.at(a)
					}
				}
			}
			return where == ""
		})
	}
	return where
}

// base is the variable that an assignment's left side changes.
func base(e ast.Expr) string {
	for {
		switch at := e.(type) {
		case *ast.Ident:
			return at.Name
		case *ast.SelectorExpr:
			e = at.X
		case *ast.IndexExpr:
			e = at.X
		case *ast.StarExpr:
			e = at.X
		case *ast.ParenExpr:
			e = at.X
		default:
			return ""
		}
	}
}
