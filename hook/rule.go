package hook

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"gopkg.in/yaml.v3"

	"github.com/holdfast-dev/holdfast"
)

// MaxRules is how many rules a file may have.
const MaxRules = 100

// Rules are a rule file.
type Rules struct {
	Rules []Rule `yaml:"rules"`
}

// Rule maps an event to what is to be done about it: a sandbox, or a session, a task
// in it, or both.
type Rule struct {
	Name  string           `yaml:"name"`  // unique in the file; part of the request ids
	Event Globs            `yaml:"event"` // the provider's name for what happened; empty: any
	When  map[string]Globs `yaml:"when"`  // by dotted path; all must match
	Box   *SandboxTemplate `yaml:"create_sandbox"`
	Sess  *SessionTemplate `yaml:"create_session"`
	Task  *TaskTemplate    `yaml:"submit_task"`
}

// SandboxTemplate is a CreateSandbox whose texts may have ${path} in them.
type SandboxTemplate struct {
	Environment string            `yaml:"environment"`
	Name        string            `yaml:"name"`
	TTL         Duration          `yaml:"ttl"`
	Env         map[string]string `yaml:"env"`
	Labels      map[string]string `yaml:"labels"`
}

// SessionTemplate is a CreateSession whose texts may have ${path} in them.
type SessionTemplate struct {
	Environment string              `yaml:"environment"`
	Name        string              `yaml:"name"`
	Idle        Duration            `yaml:"idle"`
	Env         map[string]string   `yaml:"env"`
	Labels      map[string]string   `yaml:"labels"`
	Repository  *RepositoryTemplate `yaml:"repository"`
}

// RepositoryTemplate is the git repository that a session's workspace is made from.
type RepositoryTemplate struct {
	URL string `yaml:"url"`
	Ref string `yaml:"ref"`
}

// TaskTemplate is a SubmitTask whose texts may have ${path} in them.
type TaskTemplate struct {
	Session string            `yaml:"session"` // id; "": the session that the same rule creates
	Command string            `yaml:"command"`
	Args    []string          `yaml:"args"`
	Cwd     string            `yaml:"cwd"`
	Env     map[string]string `yaml:"env"`
	Limit   Duration          `yaml:"limit"`
}

// Globs are alternatives: one text, or a list. A * stands for any characters.
type Globs []string

// UnmarshalYAML takes a scalar for a list of one.
func (g *Globs) UnmarshalYAML(node *yaml.Node) error {
	nodes := []*yaml.Node{node}
	if node.Kind == yaml.SequenceNode {
		nodes = node.Content
	}
	for _, n := range nodes {
		if n.Kind != yaml.ScalarNode {
			return fmt.Errorf("line %d: a text, or a list of texts, is needed", n.Line)
		}
		*g = append(*g, n.Value)
	}
	return nil
}

func (g Globs) match(text string) bool {
	return slices.ContainsFunc(g, func(pattern string) bool { return glob(pattern, text) })
}

// glob matches with * for any run of characters, in time that is bounded by the
// product of both lengths.
func glob(pattern, text string) bool {
	parts := strings.Split(pattern, "*")
	if len(parts) == 1 {
		return pattern == text
	}
	rest, ok := strings.CutPrefix(text, parts[0])
	if !ok {
		return false
	}
	for _, part := range parts[1 : len(parts)-1] {
		at := strings.Index(rest, part)
		if at < 0 {
			return false
		}
		rest = rest[at+len(part):]
	}
	return strings.HasSuffix(rest, parts[len(parts)-1])
}

// Duration is written as 90s, 15m or 1h30m.
type Duration time.Duration

// UnmarshalYAML reads it.
func (d *Duration) UnmarshalYAML(node *yaml.Node) error {
	v, err := time.ParseDuration(node.Value)
	if err != nil || v < 0 {
		return fmt.Errorf("line %d: %q is no length of time such as 90s or 1h", node.Line, node.Value)
	}
	*d = Duration(v)
	return nil
}

// Parse reads a rule file. Its errors are INVALID_ARGUMENT, and name the line or the
// rule, and what is wrong with it.
func Parse(text string) (Rules, error) {
	rules, err := decode(text)
	if err != nil {
		return Rules{}, invalid("%s", strings.TrimPrefix(strings.ReplaceAll(err.Error(), "\n", " "), "yaml: "))
	}
	switch n := len(rules.Rules); {
	case n == 0:
		return Rules{}, invalid("there is no rule: begin with rules: and a list")
	case n > MaxRules:
		return Rules{}, invalid("there are %d rules; at most %d are allowed", n, MaxRules)
	}
	seen := map[string]bool{}
	for i, r := range rules.Rules {
		if r.Name == "" {
			return Rules{}, invalid("rule %d has no name", i+1)
		}
		if seen[r.Name] {
			return Rules{}, invalid("two rules are named %q", r.Name)
		}
		seen[r.Name] = true
		if err := r.check(); err != nil {
			return Rules{}, invalid("rule %q %s", r.Name, err)
		}
	}
	return rules, nil
}

// decode refuses keys that there are not: one is a misspelt key, whose rule would
// match more than its author meant.
func decode(text string) (rules Rules, err error) {
	d := yaml.NewDecoder(bytes.NewReader([]byte(text)))
	d.KnownFields(true)
	if err := d.Decode(&rules); err != nil && !errors.Is(err, io.EOF) {
		return Rules{}, err
	}
	if err := d.Decode(&Rules{}); !errors.Is(err, io.EOF) {
		return Rules{}, errors.New("there is a second document in it: one file has one list of rules")
	}
	return rules, nil
}

func invalid(format string, args ...any) error {
	return holdfast.E(holdfast.InvalidArgument, holdfast.ReasonBadField, "rules: "+format, args...).With("field", "rules")
}

// check says what is wrong with a rule.
func (r Rule) check() error {
	if len(r.Name) > holdfast.MaxName {
		return fmt.Errorf("has a name of %d bytes; at most %d are allowed", len(r.Name), holdfast.MaxName)
	}
	switch {
	case r.Box != nil && (r.Sess != nil || r.Task != nil):
		return errors.New("has create_sandbox beside another action: give one, or create_session with submit_task")
	case r.Box == nil && r.Sess == nil && r.Task == nil:
		return errors.New("does nothing: give it create_sandbox, create_session or submit_task")
	case r.Box != nil && r.Box.Environment == "":
		return errors.New("has a create_sandbox without environment")
	case r.Sess != nil && r.Sess.Environment == "":
		return errors.New("has a create_session without environment")
	case r.Sess != nil && r.Sess.Repository != nil && r.Sess.Repository.URL == "":
		return errors.New("has a repository without url")
	case r.Task != nil && r.Task.Command == "":
		return errors.New("has a submit_task without command")
	case r.Task != nil && (r.Task.Session == "") == (r.Sess == nil):
		return errors.New("has a submit_task that needs either the id of a session, or create_session beside it")
	}
	if _, err := r.filled(checkTemplate); err != nil {
		return err
	}
	for path := range r.When {
		if path == "" || slices.Contains(strings.Split(path, "."), "") {
			return fmt.Errorf("has a path %q in when; paths are names with dots between them", path)
		}
	}
	return nil
}
