package architecture

import (
	"go/ast"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// A test is named in docs/promises.md and docs/reports.md as `package.TestName`, the
// package as a path below the module, or as `package.TestName/part` for one of its parts.
var testName = regexp.MustCompile("`([a-z0-9/-]+)\\.(Test\\w+|Example\\w*)((?:/[^`\\s]+)?)`")

func TestPromises_EveryTestNamedInThemExists(t *testing.T) {
	wantNamedTests(t, load(t), "docs/promises.md", 50)
}

// The situations that users of such systems reported are as many as we know of, each
// with a test or with the word that what it concerns is not built yet.
func TestReports_EveryTestNamedInThemExists(t *testing.T) {
	loaded := load(t)
	wantNamedTests(t, loaded, "docs/reports.md", 40)
	raw, err := os.ReadFile(filepath.Join(loaded.root, "docs", "reports.md"))
	if err != nil {
		t.Fatal(err)
	}
	rows := 0
	for line := range strings.Lines(string(raw)) {
		if !strings.HasPrefix(line, "| ") || strings.HasPrefix(line, "| the situation") {
			continue
		}
		rows++
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		if len(cells) != 4 || slices.ContainsFunc(cells, func(c string) bool { return strings.TrimSpace(c) == "" }) {
			t.Errorf("docs/reports.md: a row needs four cells: %s", line)
			continue
		}
		if !testName.MatchString(cells[3]) && !strings.Contains(cells[2], "*not built yet*") {
			t.Errorf("docs/reports.md: neither a test nor *not built yet*: %s", line)
		}
	}
	if rows < 28 {
		t.Errorf("docs/reports.md has %d situations: one was lost", rows)
	}
}

// wantNamedTests fails for every test that a document names and that does not exist.
func wantNamedTests(t *testing.T, loaded tree, document string, least int) {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(loaded.root, filepath.FromSlash(document)))
	if err != nil {
		t.Fatal(err)
	}
	found := testName.FindAllStringSubmatch(string(raw), -1)
	if all := strings.Count(string(raw), ".Test") - strings.Count(string(raw), "PACKAGE.Test"); len(found) != all || all < least {
		t.Errorf("%s names %d tests, of which %d are written as `package.TestName`", document, all, len(found))
	}
	for _, m := range found {
		where := slices.IndexFunc(loaded.ours, func(p pkg) bool { return p.path == m[1] || p.path == "." && m[1] == "holdfast" })
		if where < 0 {
			t.Errorf("%s names %s, and there is no package %s", document, m[0], m[1])
			continue
		}
		if !has(loaded.ours[where], m[2]) {
			t.Errorf("%s names %s, and %s has no such test", document, m[0], m[1])
		}
		if part := strings.TrimPrefix(m[3], "/"); part != "" && !anywhere(loaded, part) {
			t.Errorf("%s names %s, and no test or suite has a part %q", document, m[0], part)
		}
	}
	for line := range strings.Lines(string(raw)) {
		if strings.Count(line, "`")%2 != 0 {
			t.Errorf("%s: a code mark is not closed: %s", document, strings.TrimSpace(line))
		}
	}
}

func has(p pkg, name string) bool {
	for _, f := range p.files {
		for _, d := range f.syntax.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && f.test && fn.Recv == nil && fn.Name.Name == name {
				return true
			}
		}
	}
	return false
}

// anywhere reports a string literal by which a part of a test or suite is named.
func anywhere(loaded tree, part string) bool {
	for _, p := range loaded.ours {
		for _, f := range p.files {
			named := false
			ast.Inspect(f.syntax, func(n ast.Node) bool {
				if lit, ok := n.(*ast.BasicLit); ok && strings.Trim(lit.Value, "\"`") == part {
					named = true
				}
				return !named
			})
			if named {
				return true
			}
		}
	}
	return false
}

// A function is named in ARCHITECTURE.md as `package.Function` or as
// `package.Type.method`.
var codeName = regexp.MustCompile("`([a-z][a-z0-9/-]*)\\.(?:([A-Za-z]\\w*)\\.)?([A-Za-z]\\w*)`")

func TestArchitecture_WhatItNamesExists(t *testing.T) {
	loaded := load(t)
	raw, err := os.ReadFile(filepath.Join(loaded.root, "ARCHITECTURE.md"))
	if err != nil {
		t.Fatal(err)
	}
	text := string(raw)
	if lines := strings.Count(text, "\n"); lines > 200 {
		t.Errorf("ARCHITECTURE.md has %d lines; 200 is what a person reads", lines)
	}
	named := 0
	for _, m := range codeName.FindAllStringSubmatch(text, -1) {
		where := slices.IndexFunc(loaded.ours, func(p pkg) bool { return p.path == m[1] || p.path == "." && m[1] == "holdfast" })
		if where < 0 || m[2] == "" && m[3] == "db" {
			continue // a file, or another library's
		}
		if named++; !declares(loaded.ours[where], m[2], m[3]) {
			t.Errorf("ARCHITECTURE.md names %s, which does not exist", m[0])
		}
	}
	if named < 20 {
		t.Errorf("ARCHITECTURE.md names %d functions: where is the request that it traces?", named)
	}
	for _, p := range loaded.ours {
		if top, _, _ := strings.Cut(p.path, "/"); p.path != "." && !strings.Contains(text, "\n"+top) {
			t.Errorf("ARCHITECTURE.md has no line in its map for %s", p.path)
		}
	}
}

// declares reports a function, or a type's method, or a type.
func declares(p pkg, typ, name string) bool {
	for _, f := range p.source() {
		for _, d := range f.syntax.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if d.Name.Name == name && (typ == "" && d.Recv == nil || d.Recv != nil && receiver(d) == typ) {
					return true
				}
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					if s, ok := spec.(*ast.TypeSpec); ok && (typ == "" && s.Name.Name == name || s.Name.Name == typ && method(s, name)) {
						return true
					}
				}
			}
		}
	}
	return false
}

func method(s *ast.TypeSpec, name string) bool {
	i, ok := s.Type.(*ast.InterfaceType)
	return ok && slices.ContainsFunc(i.Methods.List, func(f *ast.Field) bool {
		return slices.ContainsFunc(f.Names, func(id *ast.Ident) bool { return id.Name == name })
	})
}
