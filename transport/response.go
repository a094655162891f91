package transport

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"net/http"
	"strconv"
	"strings"
)

// holdSize is how much of a body waits with its header for a flush or the handler's
// end, as in net/http: a handler that fails early has then sent nothing.
const holdSize = 4 << 10

// responseWriter is what the handler writes to. As in net/http it is the handler's
// goroutine's alone.
type responseWriter struct {
	exchange *exchange
	request  *http.Request // the client's

	header    http.Header // the handler's, live
	status    int         // 0 until WriteHeader
	frozen    http.Header // the header as of WriteHeader
	held      bytes.Buffer
	committed bool
	length    int64 // announced length; -1 when none was
	written   int64
}

var (
	_ http.Flusher                                  = (*responseWriter)(nil)
	_ interface{ FlushError() error }               = (*responseWriter)(nil)
	_ interface{ EnableFullDuplex() error }         = (*responseWriter)(nil)
	_ interface{ WriteString(string) (int, error) } = (*responseWriter)(nil)
)

// Header is the response's, and after WriteHeader its trailers'.
func (w *responseWriter) Header() http.Header { return w.header }

// WriteHeader settles status and header; both leave with the first flush.
func (w *responseWriter) WriteHeader(status int) {
	if status < 100 || status > 999 {
		panic(fmt.Sprintf("transport: WriteHeader with status %d", status))
	}
	if status == http.StatusSwitchingProtocols {
		panic("transport: the in-memory network speaks HTTP/2 and switches to no other protocol")
	}
	// Informational answers are hints that no client here waits for.
	if w.status != 0 || status < 200 {
		return
	}
	w.status, w.frozen, w.length = status, w.header.Clone(), -1
	if text := w.frozen.Get("Content-Length"); text != "" {
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil || n < 0 {
			w.frozen.Del("Content-Length")
			return
		}
		w.length = n
	}
}

// Write sends b, or keeps it while it is small; it waits for a client that reads slowly.
func (w *responseWriter) Write(b []byte) (int, error) {
	if w.status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	if !w.bodyAllowed() {
		return 0, http.ErrBodyNotAllowed
	}
	if w.length >= 0 && w.written+int64(len(b)) > w.length {
		return 0, http.ErrContentLength
	}
	w.written += int64(len(b))
	if w.request.Method == http.MethodHead {
		return len(b), nil
	}
	if !w.committed && w.held.Len()+len(b) <= holdSize {
		return w.held.Write(b)
	}
	if err := w.flush(b); err != nil {
		return 0, err
	}
	return w.exchange.download.Write(b)
}

// WriteString is Write.
func (w *responseWriter) WriteString(s string) (int, error) { return w.Write([]byte(s)) }

// Flush sends what is held.
func (w *responseWriter) Flush() {
	// A broken connection shows at the next Write, and in the request's context.
	if err := w.FlushError(); err != nil {
		w.exchange.logger().Debug("transport: flush", "host", w.exchange.name, "error", err)
	}
}

// FlushError sends what is held, and says if nobody is there to get it.
func (w *responseWriter) FlushError() error {
	if w.status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	return w.flush(nil)
}

// EnableFullDuplex has nothing to do: reading and writing never exclude each other.
func (w *responseWriter) EnableFullDuplex() error { return nil }

func (w *responseWriter) bodyAllowed() bool {
	return w.status != http.StatusNoContent && w.status != http.StatusNotModified
}

// flush commits the header and sends the held bytes; next is what follows them, for
// its type to be guessed.
func (w *responseWriter) flush(next []byte) error {
	if err := w.commit(next); err != nil || w.held.Len() == 0 {
		return err
	}
	_, err := w.exchange.download.Write(w.held.Bytes())
	w.held.Reset()
	return err
}

// commit lets the client see the header, unless the connection has broken.
func (w *responseWriter) commit(next []byte) error {
	if w.committed {
		return nil
	}
	sample := w.held.Bytes()
	if len(sample) == 0 {
		sample = next
	}
	if len(sample) > 0 && w.frozen.Get("Content-Type") == "" {
		w.frozen.Set("Content-Type", http.DetectContentType(sample))
	}
	var trailer http.Header
	for _, names := range w.frozen.Values("Trailer") {
		for name := range strings.SplitSeq(names, ",") {
			if trailer == nil {
				trailer = http.Header{}
			}
			trailer[http.CanonicalHeaderKey(strings.TrimSpace(name))] = nil
		}
	}
	w.frozen.Del("Trailer")
	maps.DeleteFunc(w.frozen, func(key string, _ []string) bool {
		_, isTrailer := trailer[key]
		return isTrailer || strings.HasPrefix(key, http.TrailerPrefix)
	})
	x := w.exchange
	x.answer = &http.Response{
		Status:     strconv.Itoa(w.status) + " " + http.StatusText(w.status),
		StatusCode: w.status, Proto: "HTTP/2.0", ProtoMajor: 2,
		Header: w.frozen, Trailer: trailer, ContentLength: w.length,
		Body: downloadBody{x}, Request: w.request,
	}
	if !w.bodyAllowed() {
		x.answer.ContentLength = 0
	}
	err := x.begin()
	w.committed = err == nil
	return err
}

// finish is the handler's normal end.
func (w *responseWriter) finish() {
	if w.status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	head := w.request.Method == http.MethodHead
	if !w.committed && w.length < 0 && w.bodyAllowed() && (!head || w.written > 0) {
		w.length = w.written
		w.frozen.Set("Content-Length", strconv.FormatInt(w.written, 10))
	}
	// An error here is the client's going away, which it knows.
	if err := w.commit(nil); err != nil {
		return
	}
	x := w.exchange
	if w.held.Len() > 0 { // then nothing was sent yet
		x.download.fill(w.held.Bytes())
	}
	if w.length > w.written && !head && w.bodyAllowed() {
		x.download.finish(io.ErrUnexpectedEOF)
		return
	}
	w.setTrailers()
	x.download.finish(io.EOF)
}

// setTrailers fills the response's trailers before the client can see the body's end.
func (w *responseWriter) setTrailers() {
	answer := w.exchange.answer
	trailer := answer.Trailer
	for key := range trailer {
		if values, ok := w.header[key]; ok {
			trailer[key] = append([]string(nil), values...)
		}
	}
	for key, values := range w.header {
		if name, ok := strings.CutPrefix(key, http.TrailerPrefix); ok {
			if trailer == nil {
				trailer = http.Header{}
				answer.Trailer = trailer
			}
			trailer[http.CanonicalHeaderKey(name)] = append([]string(nil), values...)
		}
	}
}
