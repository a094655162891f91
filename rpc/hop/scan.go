package hop

import (
	"bytes"
	"strconv"
	"time"
)

// writer writes plain JSON; ok turns false at what is not plain.
type writer struct {
	out []byte
	ok  bool
}

// plain reports whether a byte stands in JSON for itself, as encoding/json writes it.
func plain(c byte) bool {
	return c >= ' ' && c <= '~' && c != '"' && c != '\\' && c != '<' && c != '>' && c != '&'
}

func (w *writer) raw(s string) { w.out = append(w.out, s...) }

func (w *writer) text(key, s string) {
	for i := range len(s) {
		w.ok = w.ok && plain(s[i])
	}
	w.raw(key)
	w.out = append(append(append(w.out, '"'), s...), '"')
}

// optional leaves out what is empty.
func (w *writer) optional(key, s string) {
	if s != "" {
		w.text(key, s)
	}
}

func (w *writer) number(key string, n int64) {
	w.raw(key)
	w.out = strconv.AppendInt(w.out, n, 10)
}

func (w *writer) instant(key string, t time.Time) {
	var err error
	w.raw(key)
	w.raw(`"`)
	w.out, err = t.AppendText(w.out)
	w.ok = w.ok && err == nil // else a year that RFC 3339 has not
	w.raw(`"`)
}

// reader reads what writer writes; ok turns false at anything else.
type reader struct {
	rest []byte
	ok   bool
}

// ended reports whether everything was as the writer has it, to the end.
func (r *reader) ended() bool { return r.ok && len(r.rest) == 0 }

// next passes over s if it is next.
func (r *reader) next(s string) bool {
	if !r.ok || len(r.rest) < len(s) || string(r.rest[:len(s)]) != s {
		return false
	}
	r.rest = r.rest[len(s):]
	return true
}

func (r *reader) raw(s string) { r.ok = r.next(s) }

// quoted is what stands between quotes after key.
func (r *reader) quoted(key string) []byte {
	if r.raw(key); !r.ok || len(r.rest) == 0 || r.rest[0] != '"' {
		r.ok = false
		return nil
	}
	end := bytes.IndexByte(r.rest[1:], '"') + 1
	if end == 0 {
		r.ok = false
		return nil
	}
	s := r.rest[1:end]
	for _, c := range s {
		r.ok = r.ok && plain(c)
	}
	r.rest = r.rest[end+1:]
	return s
}

func (r *reader) text(key string) string { return string(r.quoted(key)) }

func (r *reader) optional(key string) string {
	if !r.next(key) {
		return ""
	}
	return r.text("")
}

func (r *reader) number(key string) int64 {
	r.raw(key)
	end := 0
	for end < len(r.rest) && (r.rest[end] >= '0' && r.rest[end] <= '9' || r.rest[end] == '-') {
		end++
	}
	n, err := strconv.ParseInt(string(r.rest[:end]), 10, 64)
	// The canonical form alone: "-0" and "01" are not the writer's.
	if err != nil || strconv.FormatInt(n, 10) != string(r.rest[:end]) {
		r.ok = false
		return 0
	}
	r.rest = r.rest[end:]
	return n
}

func (r *reader) instant(key string) (t time.Time) {
	s := r.quoted(key)
	if !r.ok {
		return t
	}
	r.ok = t.UnmarshalText(s) == nil
	return t
}
