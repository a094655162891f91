package step

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"net/http"
	"strconv"
	"strings"
)

// Transport is a party's way to the others: every request is a step, of which
// Before may hold the request and After its answer.
type Transport struct {
	Next  http.RoundTripper
	Party string
	Hook  Hook
}

type stepKey struct{}

// Of returns the step that a request is, for those who decide what it suffers.
func Of(r *http.Request) (*Step, bool) {
	s, ok := r.Context().Value(stepKey{}).(*Step)
	return s, ok
}

// RoundTrip implements http.RoundTripper.
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	path, ids := route(r.URL.Path)
	r, inside, err := inBody(r)
	if err != nil {
		return nil, err
	}
	ids = append(ids, inside...)
	if id := r.Header.Get("webhook-id"); id != "" {
		ids = append(ids, id)
	}
	s := &Step{Party: t.Party, Kind: Hop, Name: r.URL.Host + path, Actor: actor(r.Context()), Key: strings.Join(unique(ids), " ")}
	ctx := r.Context()
	if err := t.Hook.Before(ctx, s); err != nil {
		return nil, errors.Join(err, closeBody(r))
	}
	r = r.Clone(context.WithValue(ctx, stepKey{}, s))
	r.Header.Set(header, s.name())
	res, err := t.Next.RoundTrip(r)
	told := t.Hook.After(ctx, s, err)
	if told != nil && res != nil {
		return nil, errors.Join(told, res.Body.Close())
	}
	return res, told
}

// header names a request to whoever receives it, in place of what a real receiver
// knows: on which connection it came.
const header = "Simulation-Step"

// name is short, and the same for the same step of every run.
func (s *Step) name() string {
	h := fnv.New64a()
	// A hash never fails.
	_, _ = fmt.Fprintf(h, "%s %s %s %s %d", s.Party, s.Name, s.Key, s.Actor, s.N)
	return strconv.FormatUint(h.Sum64(), 36)
}

// Handler is a party's side of the requests that reach it.
func Handler(party string, hook Hook, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		path, ids := route(r.URL.Path)
		s := &Step{Party: party, Kind: Serve, Name: path, Actor: r.Header.Get(header), Key: strings.Join(ids, " ")}
		r = r.WithContext(context.WithValue(r.Context(), requestKey{}, s.Actor))
		if err := hook.Before(r.Context(), s); err != nil {
			panic(http.ErrAbortHandler) // as a process that died: the connection breaks
		}
		next.ServeHTTP(w, r)
		if err := hook.After(r.Context(), s, nil); err != nil {
			panic(http.ErrAbortHandler)
		}
	})
}

// route is a path without the ids in it, and those.
func route(path string) (string, []string) {
	ids := idsIn(path)
	if len(ids) == 0 {
		return path, nil
	}
	plain, from := "", 0
	for begin, end := nextID(path, 0); begin >= 0; begin, end = nextID(path, end) {
		plain, from = plain+path[from:begin]+"*", end
	}
	return plain + path[from:], ids
}

// bodyShown bounds a body that is looked at for ids, in bytes.
const bodyShown = 64 << 10

// inBody finds the ids in a body of a known, small length, and gives the request
// with a body that can be had again. (A client's own GetBody may share its bytes with
// the body, so it is not asked.)
func inBody(r *http.Request) (*http.Request, []string, error) {
	if r.Body == nil || r.Body == http.NoBody || r.ContentLength <= 0 || r.ContentLength > bodyShown {
		return r, nil, nil
	}
	text, err := io.ReadAll(io.LimitReader(r.Body, bodyShown))
	if err = errors.Join(err, r.Body.Close()); err != nil {
		return r, nil, err
	}
	r = r.WithContext(r.Context())
	r.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(text)), nil }
	r.Body = io.NopCloser(bytes.NewReader(text))
	return r, idsIn(string(text)), nil
}

func unique(ids []string) []string {
	var out []string
	for _, id := range ids {
		if !contains(out, id) && len(out) < maxKeys {
			out = append(out, id)
		}
	}
	return out
}

func closeBody(r *http.Request) error {
	if r.Body == nil {
		return nil
	}
	return r.Body.Close()
}
