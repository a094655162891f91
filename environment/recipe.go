package environment

import (
	"fmt"
	"strings"

	"gopkg.in/yaml.v3"

	"github.com/holdfast-dev/holdfast"
)

// key is what a mapping may have, with what reads its value.
type key struct {
	name string
	read func(field string, value *yaml.Node) error
}

// environment reads the outermost mapping.
func (r reader) environment(root *yaml.Node, out *holdfast.CreateEnvironment) error {
	recipe := &out.Recipe
	return r.mapping("", root,
		key{"name", text(&out.Name)},
		key{"base", text(&recipe.Base)},
		key{"setup", text(&recipe.Setup)},
		key{"files", func(field string, value *yaml.Node) error { return r.files(field, value, recipe) }},
		key{"env", func(field string, value *yaml.Node) error { return r.variables(field, value, &recipe.Env) }},
		key{"workdir", text(&recipe.Workdir)},
		key{"user", plain(&recipe.User)},
		key{"resources", func(field string, value *yaml.Node) error { return r.resources(field, value, &recipe.Resources) }},
		key{"ports", func(field string, value *yaml.Node) error { return r.ports(field, value, recipe) }},
		key{"egress", func(field string, value *yaml.Node) error { return r.egress(field, value, recipe) }},
		key{"hooks", func(field string, value *yaml.Node) error {
			return r.mapping(field, value, key{"on_suspend", text(&recipe.Hooks.OnSuspend)},
				key{"on_resume", text(&recipe.Hooks.OnResume)}, key{"on_delete", text(&recipe.Hooks.OnDelete)})
		}},
		key{"repository", func(field string, value *yaml.Node) error {
			recipe.Repository = &holdfast.Repository{}
			return r.mapping(field, value, key{"url", text(&recipe.Repository.URL)}, key{"ref", plain(&recipe.Repository.Ref)})
		}},
		key{"restart", func(field string, value *yaml.Node) error {
			var policy string
			err := text(&policy)(field, value)
			recipe.Restart = holdfast.Restart(strings.ToUpper(policy))
			return err
		}},
		key{"build", func(field string, value *yaml.Node) error {
			return r.mapping(field, value, key{"timeout", duration(&recipe.Timeout)})
		}},
	)
}

// mapping reads a mapping of known keys, each at most once.
func (r reader) mapping(field string, node *yaml.Node, known ...key) error {
	if node.Kind != yaml.MappingNode {
		return wrong(node.Line, field, "must be a mapping of %s, not %s", names(known), kindOf(node))
	}
	r.lines[field] = node.Line
	seen := map[string]int{}
	for i := 0; i+1 < len(node.Content); i += 2 {
		name, value := node.Content[i], node.Content[i+1]
		at := join(field, name.Value)
		if first, twice := seen[name.Value]; twice {
			return wrong(name.Line, at, "is there twice, first in line %d", first)
		}
		seen[name.Value] = name.Line
		read, err := find(known, name, field)
		if err != nil {
			return err
		}
		r.lines[at] = value.Line
		if value.Kind == yaml.AliasNode {
			return wrong(value.Line, at, "is an alias, which is not taken: write it out")
		}
		if err := read(at, value); err != nil {
			return err
		}
	}
	return nil
}

func find(known []key, name *yaml.Node, field string) (func(string, *yaml.Node) error, error) {
	for _, k := range known {
		if name.Kind == yaml.ScalarNode && k.name == name.Value {
			return k.read, nil
		}
	}
	of := "an environment"
	if field != "" {
		of = field
	}
	return nil, wrong(name.Line, "", "%q is nothing that %s has: there are %s", shown(name.Value), of, names(known)).
		With("field", join(field, shown(name.Value)))
}

// files reads a list of {path, content, mode}, or a mapping of paths to contents.
func (r reader) files(field string, node *yaml.Node, out *holdfast.Recipe) error {
	switch node.Kind {
	case yaml.SequenceNode:
		for i, item := range node.Content {
			at := fmt.Sprintf("%s[%d]", field, i)
			var f holdfast.RecipeFile
			if err := r.mapping(at, item, key{"path", text(&f.Path)}, key{"content", text(&f.Content)}, key{"mode", mode(&f.Mode)}); err != nil {
				return err
			}
			out.Files = append(out.Files, f)
		}
		return nil
	case yaml.MappingNode:
		for i := 0; i+1 < len(node.Content); i += 2 {
			at := fmt.Sprintf("%s[%d]", field, i/2)
			r.lines[at] = node.Content[i].Line
			f := holdfast.RecipeFile{Path: node.Content[i].Value}
			if err := text(&f.Content)(at+".content", node.Content[i+1]); err != nil {
				return err
			}
			out.Files = append(out.Files, f)
		}
		return nil
	}
	return wrong(node.Line, field, "must be a list of path, content and mode, or a mapping of paths to contents, not %s", kindOf(node))
}

// variables takes numbers and booleans as they are written.
func (r reader) variables(field string, node *yaml.Node, out *map[string]string) error {
	if node.Kind != yaml.MappingNode {
		return wrong(node.Line, field, "must be a mapping of names to values, not %s", kindOf(node))
	}
	*out = map[string]string{}
	for i := 0; i+1 < len(node.Content); i += 2 {
		name, value := node.Content[i], node.Content[i+1]
		at := join(field, name.Value)
		r.lines[field+"["+shown(name.Value)+"]"] = value.Line
		if _, twice := (*out)[name.Value]; twice {
			return wrong(name.Line, at, "is there twice")
		}
		var v string
		if err := plain(&v)(at, value); err != nil {
			return err
		}
		(*out)[name.Value] = v
	}
	return nil
}

func (r reader) resources(field string, node *yaml.Node, out *holdfast.Resources) error {
	err := r.mapping(field, node,
		key{"cpu", processors(&out.CPUMillis)},
		key{"memory", size(&out.MemoryBytes)},
		key{"pids", number(&out.PIDs)},
		key{"disk", func(field string, value *yaml.Node) error {
			return wrong(value.Line, field, "cannot be limited by this version: take it out")
		}},
	)
	// Where a limit is broken, the root names the field as the API does.
	r.lines["resources.cpu_millis"], r.lines["resources.memory_bytes"] = r.lines[field+".cpu"], r.lines[field+".memory"]
	return err
}

func (r reader) ports(field string, node *yaml.Node, out *holdfast.Recipe) error {
	if node.Kind != yaml.SequenceNode {
		return wrong(node.Line, field, "must be a list of numbers, not %s", kindOf(node))
	}
	for i, item := range node.Content {
		var port int64
		if err := number(&port)(fmt.Sprintf("%s[%d]", field, i), item); err != nil {
			return err
		}
		if port < 1 || port > 65535 {
			return wrong(item.Line, field, "has %d; a port is between 1 and 65535", port)
		}
		out.Ports = append(out.Ports, int(port))
	}
	return nil
}

// egress reads "internet", "none", or a list of what is allowed: an empty one is none.
func (r reader) egress(field string, node *yaml.Node, out *holdfast.Recipe) error {
	if node.Kind != yaml.MappingNode {
		var word string
		err := text(&word)(field, node)
		out.Egress = holdfast.Egress(strings.ToUpper(word))
		return err
	}
	return r.mapping(field, node, key{"allow", func(field string, value *yaml.Node) error {
		if value.Kind != yaml.SequenceNode {
			return wrong(value.Line, field, "must be a list, not %s", kindOf(value))
		}
		if len(value.Content) > 0 {
			return wrong(value.Content[0].Line, field, `cannot name hosts or networks in this version: egress is "internet" or "none"`)
		}
		out.Egress = holdfast.EgressNone
		return nil
	}})
}

func names(known []key) string {
	all := make([]string, len(known))
	for i, k := range known {
		all[i] = k.name
	}
	return strings.Join(all, ", ")
}

func join(field, name string) string {
	if field == "" {
		return name
	}
	return field + "." + name
}
