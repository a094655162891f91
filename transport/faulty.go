package transport

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"
)

// Faulty passes requests on to Next as Plan says. It is safe for concurrent use once
// its fields are set, and must not be copied.
type Faulty struct {
	Next http.RoundTripper // required
	Plan Plan              // nil: no faults
	// After times delays; nil means [time.After].
	After func(time.Duration) <-chan time.Time

	fired   [kinds]atomic.Int64
	delayed atomic.Int64
}

// Fired says how often a kind has happened: a cut that found a shorter body did not.
func (f *Faulty) Fired(k Kind) int64 {
	if k < 0 || k >= kinds {
		return 0
	}
	return f.fired[k].Load()
}

// Delayed says how many requests were delayed to the end of their delay.
func (f *Faulty) Delayed() int64 { return f.delayed.Load() }

// RoundTrip is [http.RoundTripper]'s.
func (f *Faulty) RoundTrip(req *http.Request) (*http.Response, error) {
	var fault Fault
	if f.Plan != nil {
		fault = f.Plan(req)
	}
	if err := f.delay(req.Context(), fault.Delay); err != nil {
		return nil, errors.Join(err, closeBody(req))
	}
	switch fault.Kind {
	case Drop:
		f.fired[Drop].Add(1)
		return nil, errors.Join(reset(req.URL.Host), closeBody(req))
	case Hang:
		f.fired[Hang].Add(1)
		<-req.Context().Done()
		return nil, errors.Join(req.Context().Err(), closeBody(req))
	case Refuse:
		f.fired[Refuse].Add(1)
		return synthetic(req, fault), closeBody(req)
	case LoseAnswer, Replace:
		return f.swallow(req, fault)
	case Duplicate, Overlap:
		return f.twice(req, fault.Kind)
	case CutRequest:
		return f.Next.RoundTrip(f.cutRequest(req, fault.Bytes))
	case CutResponse:
		return f.cutResponse(req, fault.Bytes)
	default:
		f.fired[None].Add(1)
		return f.Next.RoundTrip(req)
	}
}

func (f *Faulty) delay(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return nil
	}
	after := time.After
	if f.After != nil {
		after = f.After
	}
	select {
	case <-after(d):
		f.delayed.Add(1)
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// swallow lets the request succeed where nobody can see it.
func (f *Faulty) swallow(req *http.Request, fault Fault) (*http.Response, error) {
	if err := drain(f.Next.RoundTrip(req)); err != nil {
		// A failure of its own is the client's to see.
		return nil, err
	}
	f.fired[fault.Kind].Add(1)
	if fault.Kind == Replace {
		return synthetic(req, fault), nil
	}
	return nil, reset(req.URL.Host)
}

// twice sends equal requests. What becomes of the first one is the receiver's
// business; the client knows of the second alone.
func (f *Faulty) twice(req *http.Request, kind Kind) (*http.Response, error) {
	var body []byte
	if req.Body != nil {
		var err error
		body, err = io.ReadAll(req.Body)
		if err = errors.Join(err, req.Body.Close()); err != nil {
			return nil, err
		}
	}
	f.fired[kind].Add(1)
	first := make(chan struct{})
	send := func() {
		defer close(first)
		// The error is lost with the answer: that is the fault.
		_ = drain(f.Next.RoundTrip(again(req, body)))
	}
	if kind == Duplicate {
		send()
		return f.Next.RoundTrip(again(req, body))
	}
	go send()
	res, err := f.Next.RoundTrip(again(req, body))
	// No request outlives the call that made it.
	<-first
	return res, err
}

// again is a copy of req with a body of its own.
func again(req *http.Request, body []byte) *http.Request {
	c := req.Clone(req.Context())
	c.GetBody = nil
	if req.Body != nil {
		c.Body = io.NopCloser(bytes.NewReader(body))
	}
	return c
}

// cutRequest gives a request whose body breaks. GetBody is removed, or a client
// would mend it.
func (f *Faulty) cutRequest(req *http.Request, after int64) *http.Request {
	c := req.Clone(req.Context())
	c.GetBody = nil
	if req.Body != nil {
		c.Body = &cutBody{body: req.Body, left: after, cut: func() error {
			f.fired[CutRequest].Add(1)
			return reset(req.URL.Host)
		}}
	}
	return c
}

func (f *Faulty) cutResponse(req *http.Request, after int64) (*http.Response, error) {
	res, err := f.Next.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	whole := res.Body
	res.Body = &cutBody{body: whole, left: after, cut: func() error {
		f.fired[CutResponse].Add(1)
		return errors.Join(reset(req.URL.Host), whole.Close())
	}}
	return res, nil
}

// cutBody gives the first bytes of a body and then an error, if there are more.
type cutBody struct {
	body io.ReadCloser
	left int64
	cut  func() error
	err  error
}

// Read is the body's until the cut.
func (c *cutBody) Read(p []byte) (int, error) {
	if c.err != nil {
		return 0, c.err
	}
	if len(p) == 0 {
		return 0, nil
	}
	if c.left > 0 {
		n, err := c.body.Read(p[:min(int64(len(p)), c.left)])
		c.left -= int64(n)
		return n, err
	}
	// Only another byte shows that there was something to cut off.
	n, err := c.body.Read(make([]byte, 1))
	if n > 0 {
		c.err = c.cut()
		return 0, c.err
	}
	return 0, err
}

// Close is the body's.
func (c *cutBody) Close() error { return c.body.Close() }

// drain reads a response to its end, which is when the handler is at its own.
func drain(res *http.Response, err error) error {
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, res.Body)
	return errors.Join(err, res.Body.Close())
}

// synthetic is an answer that no handler gave.
func synthetic(req *http.Request, fault Fault) *http.Response {
	status := fault.Status
	if status == 0 {
		status = http.StatusServiceUnavailable
	}
	return &http.Response{
		Status: strconv.Itoa(status) + " " + http.StatusText(status), StatusCode: status,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: http.Header{}, Body: http.NoBody, Request: req,
	}
}
