package transport

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"runtime/debug"
	"sync"
)

// What a request's body has for those who touch it after its handler has returned,
// or has closed it.
var (
	errDone   = errors.New("transport: the handler has returned")
	errUnread = fmt.Errorf("transport: %w", http.ErrBodyReadAfterClose)
)

// exchange is one request and its response.
type exchange struct {
	name    string
	handler http.Handler
	log     *slog.Logger
	leave   func() // tells the network that the handler has returned

	client *http.Request // as the client sent it
	server *http.Request // as the handler sees it
	cancel context.CancelFunc
	upload *pipe     // the request's body; nil when there is none
	close  sync.Once // of the client's body
	closed error     // what that said

	writer   responseWriter
	download pipe           // the response's body
	answer   *http.Response // set before settled is closed without a failure
	unwatch  func() bool    // stops watching the client's context

	settled chan struct{} // closed by what comes first, the answer or the first abort

	mu       sync.Mutex
	begun    bool  // the answer has
	failure  error // of the first abort
	returned bool  // the handler has
}

// newExchange builds what the handler sees. The handler's context is its own: values
// do not cross a network, and neither do they here.
func newExchange(req *http.Request, name string, h http.Handler) *exchange {
	ctx, cancel := context.WithCancel(context.Background())
	x := &exchange{name: name, handler: h, cancel: cancel, client: req, settled: make(chan struct{})}
	x.download.init()
	x.writer = responseWriter{exchange: x, request: req, header: http.Header{}}
	server := http.Request{
		Method: req.Method, Proto: "HTTP/2.0", ProtoMajor: 2,
		URL:    &url.URL{Path: req.URL.Path, RawPath: req.URL.RawPath, RawQuery: req.URL.RawQuery, ForceQuery: req.URL.ForceQuery},
		Header: req.Header.Clone(), Host: req.Host, RequestURI: req.URL.RequestURI(),
		RemoteAddr: "memory:0", Body: http.NoBody,
	}
	if server.Method == "" {
		server.Method = http.MethodGet
	}
	if server.Host == "" {
		server.Host = req.URL.Host
	}
	if server.Header == nil {
		server.Header = http.Header{}
	}
	var body *uploadBody
	if req.Body != nil && req.Body != http.NoBody {
		server.ContentLength = req.ContentLength
		if req.ContentLength <= 0 {
			server.ContentLength = -1
		}
		server.Trailer = declared(req.Trailer)
		body = &uploadBody{client: req}
		body.init()
		x.upload, server.Body = &body.pipe, body
	}
	x.server = server.WithContext(ctx)
	if body != nil {
		body.server = x.server
	}
	return x
}

// run serves the exchange and gives the response once its header is there.
func (x *exchange) run(req *http.Request) (*http.Response, error) {
	ctx := req.Context()
	x.unwatch = context.AfterFunc(ctx, func() { x.abort(ctx.Err()) })
	switch {
	case x.upload == nil:
	case req.GetBody != nil && req.ContentLength > 0 && req.ContentLength <= pipeSize:
		x.load() // bytes in memory, and room for all of them: nothing to wait for
	default:
		go x.pump()
	}
	go x.serve()
	<-x.settled
	x.mu.Lock()
	begun, failure := x.begun, x.failure
	x.mu.Unlock()
	if begun {
		return x.answer, nil
	}
	x.unwatch()
	return nil, failure
}

// serve runs the handler to its end.
func (x *exchange) serve() {
	growStack(0)
	defer x.leave()
	defer x.release()
	defer func() {
		if p := recover(); p != nil {
			x.panicked(p)
		}
	}()
	x.handler.ServeHTTP(&x.writer, x.server)
	x.writer.finish()
}

// growStack makes room for a handler's calls while there is next to nothing to move: a goroutine's stack begins small,
// and doubling it again and again under a handler was a twentieth of a create's processor time (measured). It is
// internal/stack's Grow: this package needs the standard library alone.
//
//go:noinline
func growStack(at int) byte {
	var room [12 << 10]byte
	return room[at] // anywhere: an array of which nothing is asked would take no room
}

// panicked breaks the connection, as a server does.
func (x *exchange) panicked(p any) {
	x.abort(reset(x.name))
	if err, ok := p.(error); ok && errors.Is(err, http.ErrAbortHandler) {
		return
	}
	x.logger().Error("transport: a handler panicked", "host", x.name, "path", x.server.URL.Path,
		"panic", fmt.Sprint(p), "stack", string(debug.Stack()))
}

func (x *exchange) logger() *slog.Logger {
	if x.log == nil {
		return slog.Default()
	}
	return x.log
}

// release ends what depends on the handler.
func (x *exchange) release() {
	x.mu.Lock()
	x.returned = true
	x.mu.Unlock()
	x.cancel()
	if x.upload != nil {
		x.upload.snap(errDone)
		x.closeUpload()
	}
}

// begin gives the client its answer. It and abort exclude each other: a client whose
// connection broke before the header left gets no answer.
func (x *exchange) begin() error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.failure == nil {
		x.begun = true
		close(x.settled)
	}
	return x.failure
}

// abort breaks both directions; the client sees err, the handler a cancelled context.
// The first one stands.
func (x *exchange) abort(err error) {
	x.mu.Lock()
	if x.failure == nil {
		x.failure = err
		if !x.begun {
			close(x.settled)
		}
	}
	x.mu.Unlock()
	x.cancel()
	x.download.snap(err)
	if x.upload != nil {
		x.upload.snap(io.ErrUnexpectedEOF)
		x.closeUpload()
	}
}

// closeUpload ends a pump that waits for the client's body. By then nobody is left
// who could be told of its error.
func (x *exchange) closeUpload() {
	if err := x.closeBody(); err != nil {
		x.logger().Debug("transport: close a request's body", "host", x.name, "error", err)
	}
}

// closeBody closes the client's body, once, and says what came of it.
func (x *exchange) closeBody() error {
	x.close.Do(func() { x.closed = closeBody(x.client) })
	return x.closed
}

// pump carries the request's body to the handler.
func (x *exchange) pump() {
	req := x.client
	var n int64
	var err error
	if req.ContentLength > 0 {
		// One more byte than announced shows that there are too many.
		length := req.ContentLength + 1
		n, err = io.CopyBuffer(x.upload, io.LimitReader(req.Body, length), make([]byte, min(length, 32<<10)))
	} else {
		n, err = io.CopyBuffer(x.upload, req.Body, make([]byte, 32<<10))
	}
	if err == nil && req.ContentLength > 0 && n != req.ContentLength {
		err = errLength(req)
	}
	if err = errors.Join(err, x.closeBody()); err == nil {
		x.upload.finish(io.EOF)
		return
	}
	x.unsent(err)
}

// load is pump for a short body of a known length that is in memory.
func (x *exchange) load() {
	req := x.client
	// One more byte than announced shows that there are too many.
	content := make([]byte, req.ContentLength+1)
	n, err := io.ReadFull(req.Body, content)
	switch {
	case int64(n) != req.ContentLength && (err == nil || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)):
		err = errLength(req)
	case int64(n) == req.ContentLength && errors.Is(err, io.ErrUnexpectedEOF):
		err = nil
	}
	x.upload.fill(content[:min(int64(n), req.ContentLength)])
	if err = errors.Join(err, x.closeBody()); err == nil {
		x.upload.finish(io.EOF)
		return
	}
	x.unsent(err)
}

func errLength(req *http.Request) error {
	return fmt.Errorf("transport: ContentLength=%d with a body of another length", req.ContentLength)
}

// unsent breaks the exchange because of what came of the request's body.
func (x *exchange) unsent(err error) {
	x.mu.Lock()
	over := x.returned
	x.mu.Unlock()
	// A handler may answer without reading everything.
	if !over && !errors.Is(err, errUnread) {
		x.abort(err)
	}
}

// uploadBody is the request's body on the handler's side.
type uploadBody struct {
	pipe
	client, server *http.Request
}

// Read hands the trailers over with the last byte.
func (b *uploadBody) Read(p []byte) (int, error) {
	n, err := b.pipe.Read(p)
	if errors.Is(err, io.EOF) {
		for key := range b.server.Trailer {
			b.server.Trailer[key] = b.client.Trailer[key]
		}
	}
	return n, err
}

// Close says that the handler reads no more.
func (b *uploadBody) Close() error {
	b.snap(errUnread)
	return nil
}

// downloadBody is the response's body on the client's side.
type downloadBody struct{ exchange *exchange }

// Read gives what the handler has written; its end stops watching the client's context.
func (b downloadBody) Read(p []byte) (int, error) {
	n, err := b.exchange.download.Read(p)
	if errors.Is(err, io.EOF) {
		b.exchange.unwatch()
	}
	return n, err
}

// Close tells a handler that still runs that its client went away.
func (b downloadBody) Close() error {
	x := b.exchange
	x.unwatch()
	x.mu.Lock()
	over := x.returned
	x.mu.Unlock()
	if over {
		x.download.snap(http.ErrBodyReadAfterClose)
	} else {
		x.abort(http.ErrBodyReadAfterClose)
	}
	return nil
}

// declared copies the names of trailers, whose values come with the body's end.
func declared(t http.Header) http.Header {
	if len(t) == 0 {
		return nil
	}
	names := make(http.Header, len(t))
	for key := range t {
		names[key] = nil
	}
	return names
}
