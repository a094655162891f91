package hook

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// filled is a copy of the rule with every text that may have ${path} in it put
// through fill. The rule itself, which other deliveries use too, stays as it is.
func (r Rule) filled(fill func(string) (string, error)) (Rule, error) {
	f := filler{fill: fill}
	if r.Box != nil {
		t := *r.Box
		t.Environment, t.Name, t.Env, t.Labels = f.text(t.Environment), f.text(t.Name), f.texts(t.Env), f.texts(t.Labels)
		r.Box = &t
	}
	if r.Sess != nil {
		t := *r.Sess
		t.Environment, t.Name, t.Env, t.Labels = f.text(t.Environment), f.text(t.Name), f.texts(t.Env), f.texts(t.Labels)
		if t.Repository != nil {
			t.Repository = &RepositoryTemplate{URL: f.text(t.Repository.URL), Ref: f.text(t.Repository.Ref)}
		}
		r.Sess = &t
	}
	if r.Task != nil {
		t := *r.Task
		t.Session, t.Command, t.Cwd, t.Env = f.text(t.Session), f.text(t.Command), f.text(t.Cwd), f.texts(t.Env)
		t.Args = make([]string, len(r.Task.Args))
		for i, arg := range r.Task.Args {
			t.Args[i] = f.text(arg)
		}
		r.Task = &t
	}
	return r, f.err
}

// filler keeps the first error.
type filler struct {
	fill func(string) (string, error)
	err  error
}

func (f *filler) text(text string) string {
	out, err := f.fill(text)
	if f.err == nil {
		f.err = err
	}
	return out
}

func (f *filler) texts(in map[string]string) map[string]string {
	if in == nil {
		return nil
	}
	out := make(map[string]string, len(in))
	for key, value := range in {
		out[key] = f.text(value)
	}
	return out
}

// replace puts a value in for each ${path}; $${ is ${ itself. A value is put in once:
// what it contains is text, whatever it looks like.
func replace(template string, value func(path string) (string, error)) (string, error) {
	var out strings.Builder
	for {
		at := strings.Index(template, "${")
		if at < 0 {
			out.WriteString(template)
			return out.String(), nil
		}
		if at > 0 && template[at-1] == '$' {
			out.WriteString(template[:at-1] + "${")
			template = template[at+2:]
			continue
		}
		path, rest, closed := strings.Cut(template[at+2:], "}")
		if !closed || path == "" || strings.ContainsAny(path, " {$") {
			return "", fmt.Errorf("has %q, in which ${ is not followed by a path and }", template)
		}
		text, err := value(path)
		if err != nil {
			return "", err
		}
		out.WriteString(template[:at] + text)
		template = rest
	}
}

func checkTemplate(text string) (string, error) {
	return replace(text, func(string) (string, error) { return "", nil })
}

// The values that a delivery has beside its payload.
const (
	pathEvent    = "holdfast.event"
	pathDelivery = "holdfast.delivery"
	pathHook     = "holdfast.hook"
	pathBranch   = "holdfast.branch" // of a ref refs/heads/…, or a pull request's head
)

// lookup finds the text, number or boolean at a dotted path, as text. Numbers in a
// path are indices of lists, from 0.
func (d Delivery) lookup(path string) (string, error) {
	switch path {
	case pathEvent:
		return d.Event, nil
	case pathDelivery:
		return d.ID, nil
	case pathHook:
		return d.Hook, nil
	case pathBranch:
		return d.branch()
	}
	at := d.Payload
	for _, name := range strings.Split(path, ".") {
		switch v := at.(type) {
		case map[string]any:
			next, ok := v[name]
			if !ok {
				return "", fmt.Errorf("the payload has no %s (no %q)", path, name)
			}
			at = next
		case []any:
			i, err := strconv.Atoi(name)
			if err != nil || i < 0 || i >= len(v) {
				return "", fmt.Errorf("the payload has no %s (no element %q in a list of %d)", path, name, len(v))
			}
			at = v[i]
		default:
			return "", fmt.Errorf("the payload has no %s (nothing is below what is before %q)", path, name)
		}
	}
	switch v := at.(type) {
	case string:
		return v, nil
	case json.Number:
		return v.String(), nil
	case bool:
		return strconv.FormatBool(v), nil
	}
	return "", fmt.Errorf("%s of the payload is no text, number or boolean", path)
}

func (d Delivery) branch() (string, error) {
	if ref, err := d.lookup("ref"); err == nil {
		if branch, ok := strings.CutPrefix(ref, "refs/heads/"); ok {
			return branch, nil
		}
	}
	if branch, err := d.lookup("pull_request.head.ref"); err == nil {
		return branch, nil
	}
	return "", errors.New("the payload names no branch, neither in ref nor in pull_request.head.ref")
}
