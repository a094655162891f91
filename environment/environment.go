// Package environment reads the recipe of an environment from YAML. It is strict:
// what it does not know, or cannot mean, is an error that names the line.
package environment

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"

	"gopkg.in/yaml.v3"

	"github.com/holdfast-dev/holdfast"
)

// MaxBytes bounds a file of YAML.
const MaxBytes = 2 << 20

// Parse reads one environment: its name and its recipe, checked. Errors are
// INVALID_ARGUMENT and begin with the line (contract: E1).
func Parse(text []byte) (holdfast.CreateEnvironment, error) {
	if len(text) > MaxBytes {
		return holdfast.CreateEnvironment{}, wrong(0, "", "the file has %d bytes; at most %d are allowed", len(text), MaxBytes)
	}
	root, err := document(text)
	if err != nil {
		return holdfast.CreateEnvironment{}, err
	}
	r := reader{lines: map[string]int{}}
	var out holdfast.CreateEnvironment
	if err := r.environment(root, &out); err != nil {
		return holdfast.CreateEnvironment{}, err
	}
	if err := out.Validate(); err != nil {
		return holdfast.CreateEnvironment{}, r.atLine(err, root.Line)
	}
	return out, nil
}

// document is the mapping that the text's only document is.
func document(text []byte) (*yaml.Node, error) {
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	var doc yaml.Node
	if err := decoder.Decode(&doc); err != nil {
		if errors.Is(err, io.EOF) {
			return nil, wrong(1, "", `it is empty: an environment has a name and a base, as in "name: tools" and "base: debian"`)
		}
		return nil, syntax(err)
	}
	var more yaml.Node
	if err := decoder.Decode(&more); !errors.Is(err, io.EOF) {
		if err != nil {
			return nil, syntax(err)
		}
		return nil, wrong(more.Line, "", "another document begins here: a file is one environment")
	}
	root := &doc
	if doc.Kind == yaml.DocumentNode && len(doc.Content) == 1 {
		root = doc.Content[0]
	}
	if root.Kind != yaml.MappingNode {
		return nil, wrong(root.Line, "", `an environment is a mapping, as in "name: tools" and "base: debian"`)
	}
	return root, nil
}

// syntax is an error of the YAML itself, which says its line.
func syntax(err error) error {
	return wrong(0, "", "%s", strings.TrimPrefix(err.Error(), "yaml: "))
}

// wrong says what is wrong at a line; 0 where that is not known.
func wrong(line int, field, format string, args ...any) *holdfast.Error {
	message := fmt.Sprintf(format, args...)
	if field != "" {
		message = field + " " + message
	}
	if line > 0 {
		message = fmt.Sprintf("line %d: %s", line, message)
	}
	e := holdfast.E(holdfast.InvalidArgument, holdfast.ReasonBadField, "%s", message)
	if field != "" {
		e = e.With("field", field)
	}
	if line > 0 {
		e = e.With("line", fmt.Sprint(line))
	}
	return e
}

// reader remembers where each field was, for what is found wrong only later.
type reader struct{ lines map[string]int }

// atLine adds the line to an error that names a field: the field's own, or that of
// what it is a part of.
func (r reader) atLine(err error, otherwise int) error {
	e := holdfast.AsError(err)
	field := e.Details["field"]
	for name := field; name != ""; name = outer(name) {
		if line := r.lines[name]; line > 0 {
			otherwise = line
			break
		}
	}
	out := wrong(otherwise, "", "%s", e.Message).With("field", field)
	return out
}

// outer is what a field is a part of: "files[0]" of "files[0].path".
func outer(field string) string {
	return field[:max(strings.LastIndexAny(field, ".["), 0)]
}
