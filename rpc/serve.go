package rpc

import (
	"net"
	"net/http"
	"time"
)

// How long a peer may be silent before it is asked whether it is there, and how
// long it may take to answer.
const (
	pingAfter   = 15 * time.Second
	pingTimeout = 15 * time.Second
)

// protocols are HTTP/1.1 and HTTP/2, the latter with and without TLS, so that
// gRPC and curl use the same port.
func protocols() *http.Protocols {
	p := new(http.Protocols)
	p.SetHTTP1(true)
	p.SetHTTP2(true)
	p.SetUnencryptedHTTP2(true)
	return p
}

// NewServer makes the server for handler: HTTP/1.1 and HTTP/2, also without TLS.
// Bodies have no deadline, since streams live long; headers do.
func NewServer(handler http.Handler) *http.Server {
	return &http.Server{
		Handler:           handler,
		Protocols:         protocols(),
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams: 1000,
			SendPingTimeout:      pingAfter,
			PingTimeout:          pingTimeout,
		},
	}
}

// NewHTTPClient makes a client for Dial. It speaks HTTP/2 without TLS, and over
// TLS what the server prefers: with HTTP/2 a refusal reaches a caller that is
// still sending, a call that is given up ends at the server too, and a peer that
// went away is noticed within 30 s.
func NewHTTPClient() *http.Client {
	unencrypted := new(http.Protocols)
	unencrypted.SetUnencryptedHTTP2(true)
	plain := newTransport()
	plain.Protocols = unencrypted
	encrypted := newTransport()
	encrypted.Protocols = protocols()
	encrypted.Proxy = http.ProxyFromEnvironment
	return &http.Client{Transport: byScheme{plain: plain, encrypted: encrypted}}
}

func newTransport() *http.Transport {
	dialer := &net.Dialer{Timeout: 10 * time.Second}
	return &http.Transport{
		DialContext:         dialer.DialContext,
		TLSHandshakeTimeout: 10 * time.Second,
		IdleConnTimeout:     90 * time.Second,
		HTTP2:               &http.HTTP2Config{SendPingTimeout: pingAfter, PingTimeout: pingTimeout},
	}
}

// byScheme sends http and https through transports of their own: one transport
// that may speak HTTP/1.1 would speak nothing else without TLS.
type byScheme struct{ plain, encrypted *http.Transport }

// RoundTrip sends one request.
func (s byScheme) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Scheme == "http" {
		return s.plain.RoundTrip(r)
	}
	return s.encrypted.RoundTrip(r)
}

// CloseIdleConnections closes what no call uses.
func (s byScheme) CloseIdleConnections() {
	s.plain.CloseIdleConnections()
	s.encrypted.CloseIdleConnections()
}
