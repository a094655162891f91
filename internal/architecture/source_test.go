package architecture

import (
	"bytes"
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
)

const module = "github.com/holdfast-dev/holdfast"

// listed is what `go list -deps -json` says of a package.
type listed struct {
	Dir, ImportPath, Name                                        string
	Standard                                                     bool
	Module                                                       *struct{ Path string }
	GoFiles, CgoFiles, IgnoredGoFiles, TestGoFiles, XTestGoFiles []string
	Imports, TestImports, XTestImports, Deps                     []string
}

// pkg is one of our packages, parsed.
type pkg struct {
	listed
	path  string // below the module; "." is the root
	files []*file
}

type file struct {
	name      string // below the module
	test      bool
	generated bool
	lines     int
	syntax    *ast.File
	set       *token.FileSet
}

func (f *file) at(n ast.Node) string {
	return f.name + ":" + f.set.Position(n.Pos()).String()[len(f.set.Position(n.Pos()).Filename)+1:]
}

type tree struct {
	root string
	all  map[string]listed // by import path, dependencies included
	ours []pkg             // by path
}

var generatedCode = regexp.MustCompile(`(?m)^// Code generated .* DO NOT EDIT\.$`)

// The tree is read once for all tests of this package.
var loadTree = sync.OnceValues(readTree)

func load(t *testing.T) tree {
	t.Helper()
	loaded, err := loadTree()
	if err != nil {
		t.Fatal(err)
	}
	return loaded
}

func readTree() (tree, error) {
	out := tree{all: map[string]listed{}}
	dir, err := filepath.Abs(filepath.Join("..", ".."))
	if err != nil {
		return out, err
	}
	out.root = dir
	cmd := exec.Command("go", "list", "-e", "-deps", "-json", "./...") // -e: what does not resolve fails by name below
	cmd.Dir = dir
	var complaints bytes.Buffer
	cmd.Stderr = &complaints
	raw, err := cmd.Output()
	if err != nil {
		return out, errors.Join(err, errors.New(complaints.String()))
	}
	for dec := json.NewDecoder(bytes.NewReader(raw)); ; {
		var l listed
		if err := dec.Decode(&l); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return out, err
		}
		out.all[l.ImportPath] = l
		if l.Module == nil || l.Module.Path != module {
			continue
		}
		p := pkg{listed: l, path: below(l.ImportPath)}
		if err := p.parse(dir); err != nil {
			return out, err
		}
		out.ours = append(out.ours, p)
	}
	slices.SortFunc(out.ours, func(a, b pkg) int { return strings.Compare(a.path, b.path) })
	return out, nil
}

// below is an import path as the tables here write it.
func below(path string) string {
	if path == module {
		return "."
	}
	return strings.TrimPrefix(path, module+"/")
}

func (p *pkg) parse(root string) error {
	names := slices.Concat(p.GoFiles, p.CgoFiles, p.IgnoredGoFiles, p.TestGoFiles, p.XTestGoFiles)
	for _, name := range names {
		path := filepath.Join(p.Dir, name)
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		set := token.NewFileSet()
		syntax, err := parser.ParseFile(set, path, text, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		p.files = append(p.files, &file{
			name: rel, test: strings.HasSuffix(name, "_test.go"), generated: generatedCode.Match(text),
			lines: bytes.Count(text, []byte("\n")), syntax: syntax, set: set,
		})
	}
	return nil
}

// source yields the package's files that people write and programs are made of.
func (p pkg) source() []*file {
	return slices.DeleteFunc(slices.Clone(p.files), func(f *file) bool { return f.test || f.generated })
}
