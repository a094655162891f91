package simulation

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/holdfast-dev/holdfast/simulation/step"
	"github.com/holdfast-dev/holdfast/transport"
)

// Fault is what a request suffers on its way.
type Fault struct {
	transport.Fault
	Copy time.Duration // a copy of it arrives so much later, whatever became of it; zero: none
}

// Name says what kind of fault it is, for accounts; "" is none.
func (f Fault) Name() string {
	switch {
	case f.Kind != transport.None:
		return f.Kind.String()
	case f.Copy > 0:
		return "late copy"
	case f.Delay > 0:
		return "delay"
	}
	return ""
}

// wire takes requests from a party to others. A name with an s, such as fleets.sim,
// stands for all replicas: one of them gets the request, another only where the
// first could not be reached at all (trap T22).
type wire struct {
	world *World
	life  *life // nil: a client's
}

type faultKey struct{}

// plannedFault is the plan of the faulty transport: what the wire found.
func plannedFault(r *http.Request) transport.Fault {
	f, _ := r.Context().Value(faultKey{}).(transport.Fault)
	return f
}

// RoundTrip implements http.RoundTripper.
func (t *wire) RoundTrip(r *http.Request) (*http.Response, error) {
	s, ok := step.Of(r)
	if !ok {
		return nil, errors.New("simulation: a request that is no step")
	}
	ctx := r.Context()
	if t.life != nil { // a process's connections end with it
		var cancel context.CancelFunc
		ctx, cancel = context.WithCancel(ctx)
		context.AfterFunc(t.life.ctx, cancel)
	}
	names := t.world.replicas(r.URL.Host, s)
	for i, name := range names {
		res, err := t.send(r.WithContext(ctx), s, name)
		if i == len(names)-1 || !refused(err) || r.Body != nil && r.GetBody == nil {
			return res, err
		}
		if r.GetBody != nil {
			if r.Body, err = r.GetBody(); err != nil {
				return nil, err
			}
		}
	}
	return nil, errors.New("simulation: no replica")
}

func refused(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial"
}

// replicas are the names behind a name, in the order in which they are tried.
func (w *World) replicas(host string, s *step.Step) []string {
	var all []*Party
	switch host {
	case "orchestrators.sim":
		all = w.Orchestrators
	case "fleets.sim":
		all = w.Fleets
	default:
		return []string{host}
	}
	first := hash(w.config.Seed, "replica", s.Party, s.Name, s.Key, s.Actor, strconv.Itoa(s.N)) % uint64(len(all))
	names := make([]string, len(all))
	for i := range all {
		names[i] = all[(first+uint64(i))%uint64(len(all))].Name + ".sim"
	}
	return names
}

// dialPatience is how long a connection is tried where nothing answers.
const dialPatience = 5 * time.Second

func (t *wire) send(r *http.Request, s *step.Step, to string) (*http.Response, error) {
	w := t.world
	party := strings.TrimSuffix(to, ".sim")
	if w.isCut(s.Party, party) {
		w.count("partition")
		wait(r.Context(), dialPatience)
		return nil, errors.Join(closeBody(r), &net.OpError{Op: "dial", Net: "memory", Err: syscall.ETIMEDOUT})
	}
	var fault Fault
	if w.config.Faults != nil {
		fault = w.config.Faults(s, party)
	}
	if name := fault.Name(); name != "" {
		w.count(name)
		w.Trace.Note(s.Party, "%s %s suffers: %s", s.Name, step.Short(s.Key), name)
	}
	out := r.Clone(context.WithValue(r.Context(), faultKey{}, fault.Fault))
	out.URL.Host, out.Host = to, ""
	if fault.Kind == transport.CutRequest && out.Body != nil {
		out.Body = &slowlyCut{ReadCloser: out.Body, left: fault.Bytes, cut: func() { w.moment(s, "is cut") }}
	}
	if fault.Copy > 0 {
		if err := w.copyLater(out, fault.Copy); err != nil {
			return nil, err
		}
	}
	res, err := w.faulty.RoundTrip(out)
	if err == nil && w.isCut(party, s.Party) { // it happened; the answer does not get through
		w.count("partition")
		err = res.Body.Close()
		<-r.Context().Done()
		return nil, errors.Join(r.Context().Err(), err)
	}
	return res, err
}

// slowlyCut is a body that is to be cut: what comes before the cut has arrived, and
// been looked at, when the connection breaks.
type slowlyCut struct {
	io.ReadCloser
	left int64
	cut  func()
}

// Read implements io.Reader.
func (b *slowlyCut) Read(p []byte) (int, error) {
	if b.left == 0 && b.cut != nil {
		b.cut()
		b.cut = nil
	}
	n, err := b.ReadCloser.Read(p)
	b.left -= int64(n)
	return n, err
}

// copyPatience bounds how long a copy's handler may take.
const copyPatience = 2 * time.Minute

// copyLater lets a copy of a request arrive on its own: nobody hears its answer.
func (w *World) copyLater(r *http.Request, after time.Duration) error {
	var body []byte
	if r.Body != nil {
		var err error
		body, err = io.ReadAll(r.Body)
		if err = errors.Join(err, r.Body.Close()); err != nil {
			return err
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
	}
	again := r.Clone(context.WithoutCancel(r.Context()))
	again.GetBody = nil
	if r.Body != nil {
		again.Body = io.NopCloser(bytes.NewReader(body))
	}
	w.late.Go(func() {
		ctx, cancel := context.WithTimeout(again.Context(), after+copyPatience)
		defer cancel()
		wait(ctx, after)
		res, err := w.network.RoundTripper().RoundTrip(again.WithContext(ctx))
		if err != nil {
			return
		}
		// Nobody is there who could be told.
		_, _ = io.Copy(io.Discard, res.Body)
		_ = res.Body.Close()
	})
	return nil
}

func closeBody(r *http.Request) error {
	if r.Body == nil {
		return nil
	}
	return r.Body.Close()
}

// Cut lets nothing through from one party to another, both by their names.
// Requests the one way and answers the other way are told apart.
func (w *World) Cut(from, to string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cut[[2]string{from, to}] = true
}

// Mend undoes every Cut.
func (w *World) Mend() {
	w.mu.Lock()
	defer w.mu.Unlock()
	clear(w.cut)
}

// mend undoes one Cut.
func (w *World) mend(from, to string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.cut, [2]string{from, to})
}

func (w *World) isCut(from, to string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.cut[[2]string{from, to}]
}
