package mutant

import (
	"encoding/json"
	"errors"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"testing"
)

// listed is a package as `go list` tells of it.
type listed struct {
	ImportPath, Dir, Export string
	GoFiles                 []string
	Module                  *struct{ Main bool }
}

// A bug that does not compile is none that could be shipped, and nothing would be
// tested by it.
func TestEveryBugAppliesAndCompiles(t *testing.T) {
	dir := root(t)
	packages := map[string]bool{}
	for _, m := range All() {
		packages["./"+path.Dir(m.File)] = true
	}
	exports, ours := list(t, dir, packages)
	c := newCompiler(exports)
	for _, m := range All() {
		text, err := m.Apply(dir)
		if err != nil {
			t.Error(err)
			continue
		}
		p, ok := ours[filepath.Join(dir, filepath.FromSlash(path.Dir(m.File)))]
		if !ok {
			t.Errorf("%s: %s is of no package that is built here", m.Name, m.File)
			continue
		}
		for _, err := range c.compile(p, filepath.Base(m.File), text) {
			t.Errorf("%s does not compile: %v", m.Name, err)
		}
	}
}

// list asks for packages by directory, and for where the export data of all that
// they import is.
func list(t *testing.T, dir string, packages map[string]bool) (exports map[string]string, ours map[string]listed) {
	t.Helper()
	args := []string{"list", "-export", "-deps", "-json=ImportPath,Dir,Export,GoFiles,Module",
		"encoding/gob"} // which a bug imports
	for p := range packages {
		args = append(args, p)
	}
	cmd := exec.CommandContext(t.Context(), "go", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	var failed strings.Builder
	cmd.Stderr = &failed
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, failed.String())
	}
	exports, ours = map[string]string{}, map[string]listed{}
	for in := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p listed
		if err := in.Decode(&p); errors.Is(err, io.EOF) {
			return exports, ours
		} else if err != nil {
			t.Fatal(err)
		}
		exports[p.ImportPath] = p.Export
		if p.Module != nil && p.Module.Main {
			ours[p.Dir] = p
		}
	}
}

// compiler checks changed files, and remembers what it read for the next.
type compiler struct {
	set      *token.FileSet
	imports  types.Importer
	declared map[string]*ast.File // by path, without the bodies of functions
}

func newCompiler(exports map[string]string) *compiler {
	set := token.NewFileSet()
	return &compiler{set: set, declared: map[string]*ast.File{},
		imports: importer.ForCompiler(set, "gc", func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) })}
}

// compile checks one changed file of a package. The bodies of the other files'
// functions do not matter to it.
func (c *compiler) compile(p listed, changed string, text []byte) (failures []error) {
	file, err := parser.ParseFile(c.set, filepath.Join(p.Dir, changed), text, parser.SkipObjectResolution)
	if err != nil {
		return []error{err}
	}
	files := []*ast.File{file}
	for _, name := range p.GoFiles {
		if name == changed {
			continue
		}
		other, err := c.declarations(filepath.Join(p.Dir, name))
		if err != nil {
			return []error{err}
		}
		files = append(files, other)
	}
	config := types.Config{Importer: c.imports, Error: func(err error) {
		var e types.Error
		if errors.As(err, &e) && filepath.Base(c.set.Position(e.Pos).Filename) == changed {
			failures = append(failures, err)
		}
	}}
	_, _ = config.Check(p.ImportPath, c.set, files, nil) // its errors came one by one
	return failures
}

func (c *compiler) declarations(path string) (*ast.File, error) {
	if file, ok := c.declared[path]; ok {
		return file, nil
	}
	file, err := parser.ParseFile(c.set, path, nil, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	for _, decl := range file.Decls {
		if f, ok := decl.(*ast.FuncDecl); ok {
			f.Body = nil
		}
	}
	c.declared[path] = file
	return file, nil
}
