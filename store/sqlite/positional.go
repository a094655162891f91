package sqlite

import (
	"database/sql/driver"
	"strconv"
	"strings"
)

// positional writes a query's $1, $2 … as ?, and tells which argument each of those takes, counted from 0. The driver asks for
// the name of every parameter whenever a statement runs, and copies it, unless it has none: that was a fiftieth of a create's
// processor time (measured). The query stays as it is, and there is no order, where a parameter stands twice, or
// something else is in it that this does not read.
func positional(query string) (string, []int) {
	var out strings.Builder
	var order []int
	seen := map[int]bool{}
	from := 0 // of what is not in out yet
	for i := 0; i < len(query); {
		if end := quoted(query, i); end > i {
			i = end
			continue
		}
		switch query[i] {
		case '?', ':', '@':
			return query, nil
		case '$':
			n, end := number(query, i+1)
			if n < 1 || seen[n] || i > 0 && named(query[i-1]) || end < len(query) && named(query[end]) {
				return query, nil
			}
			seen[n], order = true, append(order, n-1)
			out.WriteString(query[from:i])
			out.WriteByte('?')
			from, i = end, end
			continue
		}
		i++
	}
	for n := range order {
		if !seen[n+1] {
			return query, nil
		}
	}
	out.WriteString(query[from:])
	return out.String(), order
}

// quoted is the end of the string, the quoted name or the comment that begins at i; i where none does.
func quoted(query string, i int) int {
	rest := query[i:]
	var ends string
	switch {
	case rest[0] == '\'', rest[0] == '"', rest[0] == '`':
		ends = rest[:1] // a doubled one ends it and begins the next
	case rest[0] == '[':
		ends = "]"
	case strings.HasPrefix(rest, "--"):
		ends = "\n"
	case strings.HasPrefix(rest, "/*"):
		ends = "*/"
		rest, i = rest[1:], i+1
	default:
		return i
	}
	end := strings.Index(rest[1:], ends)
	if end < 0 {
		return i + len(rest)
	}
	return i + 1 + end + len(ends)
}

// number reads decimal digits from i on; 0 where there are none, or more than a query's parameters need.
func number(query string, i int) (n, end int) {
	end = i
	for end < len(query) && query[end] >= '0' && query[end] <= '9' {
		end++
	}
	n, err := strconv.Atoi(query[i:end])
	if err != nil || strconv.Itoa(n) != query[i:end] {
		return 0, end
	}
	return n, end
}

// named reports whether a character may be part of a name.
func named(c byte) bool {
	return c == '_' || c == '$' || c >= '0' && c <= '9' || c|0x20 >= 'a' && c|0x20 <= 'z' || c >= 0x80
}

// arrange puts arguments into the order of the statement's parameters. Where one is missing, it is for the driver to say so.
func (c *conn) arrange(s *stmt, args []driver.NamedValue) []driver.NamedValue {
	if s.sorted || len(args) < len(s.order) {
		return args
	}
	c.arranged = c.arranged[:0]
	for i, from := range s.order {
		c.arranged = append(c.arranged, driver.NamedValue{Ordinal: i + 1, Value: args[from].Value})
	}
	return c.arranged
}
