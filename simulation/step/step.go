// Package step numbers what a party does that lasts or that others can see, and
// lets a test act around it: hold it, fail it, let the party die before or after.
//
// The decorators here stand around what a party is given anyway (its database, its
// runtime, its way to the others, its records), so that the code between them is
// the code that runs in production. A party that has died takes no further step:
// whatever still runs of it can change nothing.
package step

import (
	"context"
	"fmt"
	"regexp"
	"runtime/pprof"
	"strings"
)

// Kind is what sort of step it is.
type Kind string

// The kinds of steps.
const (
	Update Kind = "update" // a transaction that may write; it commits between Before and After
	View   Kind = "view"   // a transaction that only reads
	Hop    Kind = "hop"    // a request: it leaves after Before, its answer is there at After
	Serve  Kind = "serve"  // a request that arrived: its handler runs between Before and After
	Call   Kind = "call"   // a call of the runtime
	Blob   Kind = "blob"   // something put into the blob store, or deleted from it
	Record Kind = "record" // a host agent's durable record; its hook must not wait, since a lock is held
)

// Step is one step that a party is about to take, or has taken.
type Step struct {
	Party  string
	Kind   Kind
	Name   string // of the function, the path, the call or the record's state
	Key    string // whom it is about: ids, as far as they are known before; separated by spaces
	Actor  string // on whose behalf: a request that was received, a sweep and its item; "" if nobody's
	N      int    // how many of this party, kind, name and key came until now, from 1
	OfKind int    // how many of its kind the party has taken until this one, from 1; set by that hook too
	Number int    // how many steps the party has taken until this one, from 1; set by the hook that orders them
}

// requestKey is where a context has the request on whose behalf it is.
type requestKey struct{}

// actor is the request, and the sweep's item or the event that is sent, that a context
// belongs to.
func actor(ctx context.Context) string {
	who, _ := ctx.Value(requestKey{}).(string)
	for _, of := range [][2]string{{"sweep", "item"}, {"webhook", "event"}} {
		if whole, ok := pprof.Label(ctx, of[0]); ok {
			part, _ := pprof.Label(ctx, of[1])
			return who + " " + whole + " " + part
		}
	}
	return who
}

// String is the step as a trace shows it, with its ids shortened.
func (s *Step) String() string {
	text := fmt.Sprintf("%s %s %s", s.Party, s.Kind, s.Name)
	if s.Key != "" {
		text += " " + Short(s.Key)
	}
	return text
}

// Hook is told of every step. It is called from many goroutines at once.
type Hook interface {
	// Before is called when a party is about to take a step, and may wait (see Record).
	// With an error the step does not happen, and the party gets that error.
	Before(ctx context.Context, s *Step) error
	// After is called when a step has happened, with its error. What it returns is what
	// the party is told: an error in place of nil means that it happened and the word
	// of it was lost.
	After(ctx context.Context, s *Step, err error) error
}

// Hooks makes one hook of two functions; nil does nothing.
type Hooks struct {
	OnBefore func(ctx context.Context, s *Step) error
	OnAfter  func(ctx context.Context, s *Step, err error) error
}

// Before implements Hook.
func (h Hooks) Before(ctx context.Context, s *Step) error {
	if h.OnBefore == nil {
		return nil
	}
	return h.OnBefore(ctx, s)
}

// After implements Hook.
func (h Hooks) After(ctx context.Context, s *Step, err error) error {
	if h.OnAfter == nil {
		return err
	}
	return h.OnAfter(ctx, s, err)
}

// around takes a step: Before, what it is, After.
func around(ctx context.Context, hook Hook, s *Step, do func() error) error {
	if err := hook.Before(ctx, s); err != nil {
		return err
	}
	return hook.After(ctx, s, do())
}

var (
	aHolder = regexp.MustCompile(`/[A-Z2-7]{26}$`)
	bigID   = regexp.MustCompile(`[a-z]{2,3}-[0-9a-z]{26}|[0-9a-f]{64}`)
)

// maxKeys bounds how many ids make a key.
const maxKeys = 3

// idsIn finds the first different ids in a text.
func idsIn(text string) []string {
	var found []string
	for begin, end := nextID(text, 0); begin >= 0 && len(found) < maxKeys; begin, end = nextID(text, end) {
		if id := text[begin:end]; !contains(found, id) {
			found = append(found, id)
		}
	}
	return found
}

// idLength is how long an id is behind its hyphen.
const idLength = 26

// nextID finds the first id from a place of a text on: two or three lower-case
// letters, a hyphen, and 26 letters and digits. It begins before zero if there is
// none. (Every hop's body is looked through: an expression would take longer than
// the hop.)
func nextID(text string, from int) (begin, end int) {
	for at := from; ; {
		i := strings.IndexByte(text[at:], '-')
		if i < 0 {
			return -1, -1
		}
		hyphen := at + i
		at = hyphen + 1
		begin, end = hyphen, hyphen+1
		for begin > from && hyphen-begin < 3 && isLetter(text[begin-1]) {
			begin--
		}
		for end < len(text) && end-hyphen <= idLength && (isLetter(text[end]) || text[end] >= '0' && text[end] <= '9') {
			end++
		}
		if hyphen-begin >= 2 && end-hyphen == idLength+1 {
			return begin, end
		}
	}
}

func isLetter(c byte) bool { return c >= 'a' && c <= 'z' }

func contains(list []string, one string) bool {
	for _, each := range list {
		if each == one {
			return true
		}
	}
	return false
}

// Short shortens every id in a text to its kind and its last four characters.
func Short(text string) string {
	return bigID.ReplaceAllStringFunc(text, func(id string) string {
		kind, rest, ok := strings.Cut(id, "-")
		if !ok {
			return "…" + id[len(id)-4:]
		}
		return kind + "…" + rest[len(rest)-4:]
	})
}
