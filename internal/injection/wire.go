package injection

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"

	"github.com/holdfast-dev/holdfast/transport"
)

// about says which messages a rule is about.
type about struct {
	path string // is in the URL's path
	body string // is in the body; "": any body
}

// rule is one fault on the wire.
type rule struct {
	of *wire // whose lock guards it
	about
	kind   transport.Kind // None keeps a copy of what passes
	most   int            // messages at most; 0: all, until it is lifted
	fired  int
	lifted bool
	taped  []taped
}

// taped is a message as it passed, to be sent again later.
type taped struct {
	method, url string
	header      http.Header
	body        []byte
}

// wire is where messages of a throwaway system pass, in both directions.
type wire struct {
	next http.RoundTripper

	mu    sync.Mutex
	rules []*rule
}

func (w *wire) add(r *rule) *rule {
	w.mu.Lock()
	defer w.mu.Unlock()
	r.of = w
	w.rules = append(w.rules, r)
	return r
}

// times makes one kind of fault happen to the first so many messages.
func (w *wire) times(n int, kind transport.Kind, a about) *rule {
	return w.add(&rule{about: a, kind: kind, most: n})
}

// always makes it happen until it is lifted.
func (w *wire) always(kind transport.Kind, a about) *rule { return w.times(0, kind, a) }

// tape keeps copies of the messages.
func (w *wire) tape(a about) *rule { return w.times(0, transport.None, a) }

func (w *wire) lift(r *rule) {
	w.mu.Lock()
	defer w.mu.Unlock()
	r.lifted = true
}

func (w *wire) liftAll() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, r := range w.rules {
		r.lifted = true
	}
}

// count is how often a rule has fired.
func (r *rule) count() int {
	r.of.mu.Lock()
	defer r.of.mu.Unlock()
	return r.fired
}

// RoundTrip passes a message on as the rules say.
func (w *wire) RoundTrip(r *http.Request) (*http.Response, error) {
	if !w.concerns(r) {
		return w.next.RoundTrip(r)
	}
	body, err := io.ReadAll(r.Body)
	if err = errors.Join(err, r.Body.Close()); err != nil {
		return nil, fmt.Errorf("read a message on its way: %w", err)
	}
	r = r.Clone(r.Context())
	r.Body, r.GetBody = io.NopCloser(bytes.NewReader(body)), nil
	kind := w.judge(r, body)
	if kind == transport.None {
		return w.next.RoundTrip(r)
	}
	faulty := &transport.Faulty{Next: w.next, Plan: func(*http.Request) transport.Fault { return transport.Fault{Kind: kind} }}
	return faulty.RoundTrip(r)
}

// concerns reports whether any rule may be about a message, which then is read
// whole: streams that no rule is about stay streams.
func (w *wire) concerns(r *http.Request) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, rule := range w.rules {
		if !rule.lifted && r.Body != nil && strings.Contains(r.URL.Path, rule.path) {
			return true
		}
	}
	return false
}

// judge is the fault that a message suffers: the first rule's that has one left.
func (w *wire) judge(r *http.Request, body []byte) transport.Kind {
	w.mu.Lock()
	defer w.mu.Unlock()
	kind := transport.None
	for _, rule := range w.rules {
		if rule.lifted || rule.most > 0 && rule.fired >= rule.most ||
			!strings.Contains(r.URL.Path, rule.path) || !strings.Contains(string(body), rule.body) {
			continue
		}
		if rule.kind == transport.None {
			rule.fired++
			rule.taped = append(rule.taped, taped{r.Method, r.URL.String(), r.Header.Clone(), body})
			continue
		}
		if kind == transport.None {
			rule.fired++
			kind = rule.kind
		}
	}
	return kind
}

// again sends the n-th copy that a rule kept, as it was, and returns the answer's
// status and body: the message arrives late.
func (w *wire) again(ctx context.Context, r *rule, n int) (status int, answer string, err error) {
	w.mu.Lock()
	if n >= len(r.taped) {
		w.mu.Unlock()
		return 0, "", fmt.Errorf("only %d of the messages passed that were to be kept", len(r.taped))
	}
	t := r.taped[n]
	w.mu.Unlock()
	req, err := http.NewRequestWithContext(ctx, t.method, t.url, bytes.NewReader(t.body))
	if err != nil {
		return 0, "", err
	}
	req.Header = t.header.Clone()
	res, err := w.next.RoundTrip(req)
	if err != nil {
		return 0, "", err
	}
	raw, err := io.ReadAll(res.Body)
	return res.StatusCode, string(raw), errors.Join(err, res.Body.Close())
}
