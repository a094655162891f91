package environment

import (
	"math"
	"strconv"
	"strings"
	"time"

	"gopkg.in/yaml.v3"
)

// text reads a string; a number or a boolean is not taken for one.
func text(out *string) func(string, *yaml.Node) error {
	return func(field string, node *yaml.Node) error {
		if node.Kind != yaml.ScalarNode || node.ShortTag() != "!!str" {
			return wrong(node.Line, field, "must be text, not %s: quote it if it is meant to be", kindOf(node))
		}
		*out = node.Value
		return nil
	}
}

// plain reads any scalar as it is written: an environment variable 1.10 is "1.10".
func plain(out *string) func(string, *yaml.Node) error {
	return func(field string, node *yaml.Node) error {
		if node.Kind != yaml.ScalarNode || node.ShortTag() == "!!null" || node.ShortTag() == "!!binary" {
			return wrong(node.Line, field, `must be text, not %s: write "" for empty text`, kindOf(node))
		}
		*out = node.Value
		return nil
	}
}

func number(out *int64) func(string, *yaml.Node) error {
	return func(field string, node *yaml.Node) error {
		n, err := strconv.ParseInt(node.Value, 10, 64)
		if node.Kind != yaml.ScalarNode || node.ShortTag() != "!!int" || err != nil {
			return wrong(node.Line, field, "must be a whole number, not %s", kindOf(node))
		}
		if n <= 0 {
			return wrong(node.Line, field, "is %d; it must be more than 0", n)
		}
		*out = n
		return nil
	}
}

// processors reads 1.5 or 500m into thousandths.
func processors(out *int64) func(string, *yaml.Node) error {
	return func(field string, node *yaml.Node) error {
		digits, factor := node.Value, 1000.0
		if rest, milli := strings.CutSuffix(digits, "m"); milli {
			digits, factor = rest, 1
		}
		n, ok := product(digits, factor)
		if node.Kind != yaml.ScalarNode || !ok {
			return wrong(node.Line, field, "must be a number of processors such as 1.5 or 500m, not %s", kindOf(node))
		}
		*out = n
		return nil
	}
}

// unit of memory, in bytes.
type unit struct {
	name   string
	factor float64
}

// units are those of memory, the longest names first.
func units() []unit {
	return []unit{
		{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"TiB", 1 << 40},
		{"Ki", 1 << 10}, {"Mi", 1 << 20}, {"Gi", 1 << 30}, {"Ti", 1 << 40},
		{"kB", 1e3}, {"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"TB", 1e12},
		{"k", 1e3}, {"K", 1e3}, {"M", 1e6}, {"G", 1e9}, {"T", 1e12}, {"B", 1},
	}
}

// size reads 512MiB, 1.5GiB or a number of bytes.
func size(out *int64) func(string, *yaml.Node) error {
	return func(field string, node *yaml.Node) error {
		digits, factor := node.Value, 1.0
		for _, u := range units() {
			if rest, ok := strings.CutSuffix(digits, u.name); ok {
				digits, factor = strings.TrimSpace(rest), u.factor
				break
			}
		}
		n, ok := product(digits, factor)
		if node.Kind != yaml.ScalarNode || !ok {
			return wrong(node.Line, field, "must be a size such as 512MiB or 2GiB, not %s", kindOf(node))
		}
		*out = n
		return nil
	}
}

// product is a positive decimal number times a factor, as a whole number.
func product(digits string, factor float64) (int64, bool) {
	if strings.Trim(digits, "0123456789.") != "" {
		return 0, false
	}
	f, err := strconv.ParseFloat(digits, 64)
	f *= factor
	if err != nil || f < 1 || f > math.MaxInt64/2 {
		return 0, false
	}
	return int64(math.Round(f)), true
}

// duration reads 30m or 1h30m.
func duration(out *time.Duration) func(string, *yaml.Node) error {
	return func(field string, node *yaml.Node) error {
		d, err := time.ParseDuration(node.Value)
		if node.Kind != yaml.ScalarNode || err != nil || d <= 0 {
			return wrong(node.Line, field, "must be a time such as 30m or 1h30m, not %s", kindOf(node))
		}
		*out = d
		return nil
	}
}

// mode reads permission bits in octal, which 755 without a zero is not surely.
func mode(out *uint32) func(string, *yaml.Node) error {
	return func(field string, node *yaml.Node) error {
		digits, octal := strings.CutPrefix(node.Value, "0")
		digits = strings.TrimPrefix(digits, "o")
		n, err := strconv.ParseUint(digits, 8, 32)
		if node.Kind != yaml.ScalarNode || !octal || err != nil || n == 0 {
			return wrong(node.Line, field, "must be permission bits in octal such as 0755, not %s", kindOf(node))
		}
		*out = uint32(n)
		return nil
	}
}

// kindOf says what a node is, for messages.
func kindOf(node *yaml.Node) string {
	switch node.Kind {
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list"
	case yaml.AliasNode:
		return "an alias"
	}
	switch node.ShortTag() {
	case "!!null":
		return "nothing"
	case "!!str":
		return strconv.Quote(shown(node.Value))
	}
	return shown(node.Value)
}

// shown bounds what a message repeats.
func shown(value string) string {
	const most = 64
	if len(value) <= most {
		return value
	}
	return strings.ToValidUTF8(value[:most], "") + "…"
}
