// Package client is the Go SDK. Its lifecycle calls keep rule A9: they are
// repeated, as they were, until they are known to be done or known to be
// refused, within one overall deadline; what is given up is kept in an
// IncompleteError. Starting a process is never repeated, output is followed
// through broken connections, and files are held against their SHA-256.
package client

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/rpc"
)

// The defaults of a client's deadlines.
const (
	DefaultAttempt = 30 * time.Second // one attempt of a lifecycle call, or a read
	DefaultOverall = 5 * time.Minute  // a lifecycle call, with all its attempts
)

// Client calls one server. It is safe for concurrent use.
type Client struct {
	services rpc.Services
	settings settings
	caller   holdfast.Caller // nothing: the API key says who calls
}

type settings struct {
	key       string
	http      *http.Client
	attempt   time.Duration
	overall   time.Duration
	random    func() float64
	requestID func(method, id string)
	retry     func(Retry)
}

// Option changes a client's settings.
type Option func(*settings)

// WithAPIKey sets the key that says who calls.
func WithAPIKey(key string) Option { return func(s *settings) { s.key = key } }

// WithHTTPClient replaces the HTTP client; nothing is set on it, and a timeout
// of its own would end streams.
func WithHTTPClient(c *http.Client) Option { return func(s *settings) { s.http = c } }

// WithAttemptTimeout bounds each attempt of a lifecycle call, and each read;
// 30 s by default.
func WithAttemptTimeout(d time.Duration) Option { return func(s *settings) { s.attempt = d } }

// WithOverallTimeout bounds a lifecycle call with all its attempts; 5 min by
// default.
func WithOverallTimeout(d time.Duration) Option { return func(s *settings) { s.overall = d } }

// WithRandom replaces the source of jitter: numbers from 0 to 1, without 1.
func WithRandom(random func() float64) Option { return func(s *settings) { s.random = random } }

// WithMintedRequestID is told each request id that the client minted, before the
// first call that uses it, so that it can be kept.
func WithMintedRequestID(told func(method, id string)) Option {
	return func(s *settings) { s.requestID = told }
}

// WithRetryNotice is told of each wait before another attempt.
func WithRetryNotice(told func(Retry)) Option { return func(s *settings) { s.retry = told } }

// New makes a client for the server at an http or https URL. It sends nothing.
func New(server string, options ...Option) (*Client, error) {
	at, err := url.Parse(server)
	if err != nil || at.Scheme != "http" && at.Scheme != "https" || at.Host == "" {
		return nil, fmt.Errorf("the server's address %q is no URL such as http://127.0.0.1:7420", server)
	}
	s := newSettings(options)
	if s.http == nil {
		s.http = rpc.NewHTTPClient()
	}
	return &Client{services: rpc.Dial(s.http, strings.TrimRight(server, "/"), s.key), settings: s}, nil
}

// Over makes a client over services that are at hand, such as those of another
// party in this process.
func Over(services rpc.Services, options ...Option) *Client {
	return &Client{services: services, settings: newSettings(options)}
}

func newSettings(options []Option) settings {
	s := settings{
		attempt: DefaultAttempt, overall: DefaultOverall, random: rand.Float64,
		requestID: func(string, string) {}, retry: func(Retry) {},
	}
	for _, o := range options {
		o(&s)
	}
	return s
}

// NewRequestID mints a request id that nobody else uses.
func NewRequestID() string { return holdfast.IDs{}.New("req") }

// JSON writes a domain value as the API's JSON does, on one line.
func JSON(value any) ([]byte, error) { return rpc.JSON(value) }
