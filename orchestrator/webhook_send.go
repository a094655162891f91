package orchestrator

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"runtime/pprof"
	"sync"
	"syscall"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/delivery"
	"github.com/holdfast-dev/holdfast/delivery/outbox"
	"github.com/holdfast-dev/holdfast/operation"
	"github.com/holdfast-dev/holdfast/store"
)

// How webhooks are sent: a receiver that hangs holds webhookEach of the
// webhookSends that one process makes at a time, and keeps no other waiting.
const (
	webhookSends   = 128
	webhookEach    = 4
	webhookTimeout = 10 * time.Second
	webhookClaim   = time.Minute
	webhookBase    = 2 * time.Second
)

// sending is the dispatcher of what is sent out. It stands still until there is
// something that could be sent, so that an installation without webhooks polls
// nothing.
type sending struct {
	*outbox.Dispatcher
	once  sync.Once
	begun chan struct{}
}

// begin lets it look, and from then on poll, since other replicas enqueue too.
func (s *sending) begin() { s.once.Do(func() { close(s.begun) }) }

func (s *sending) wake() {
	s.begin()
	s.Wake()
}

// run sends until ctx ends.
func (s *sending) run(ctx context.Context) {
	select {
	case <-s.begun:
		s.Dispatcher.Run(ctx)
	case <-ctx.Done():
	}
}

func (s *Service) newSending() (*sending, error) {
	c := s.config.Webhooks
	c.Update = func(ctx context.Context, fn func(outbox.Tx) error) error {
		return s.config.DB.Update(ctx, func(tx store.Tx) error { return fn(tx) })
	}
	c.View = func(ctx context.Context, fn func(outbox.Tx) error) error {
		return s.config.DB.View(ctx, func(tx store.Tx) error { return fn(tx) })
	}
	c.Send = func(ctx context.Context, r outbox.Row) (err error) {
		pprof.Do(ctx, pprof.Labels("webhook", r.Destination, "event", r.ID), func(ctx context.Context) { err = s.sendWebhook(ctx, r) })
		return err
	}
	c.Holder, c.Log = operation.NewHolder(s.config.Process), s.config.Logger
	c.Concurrency, c.PerDestination, c.Claim = webhookSends, webhookEach, webhookClaim
	if c.Clock == nil {
		c.Clock = s.config.Clock
	}
	c.Timeout = webhookTimeout + 2*time.Second
	if c.Policy == nil {
		c.Policy = func(string) outbox.Policy {
			return outbox.Policy{ThirdParty: true, MaxAge: holdfast.WebhookMaxAge, Base: webhookBase, Cap: holdfast.WebhookCap}
		}
	}
	d, err := outbox.New(c)
	return &sending{Dispatcher: d, begun: make(chan struct{})}, err
}

// sendWebhook makes one attempt. What can never succeed is a refusal, which is a dead
// letter at once.
func (s *Service) sendWebhook(ctx context.Context, r outbox.Row) error {
	var w holdfast.Webhook
	err := s.view(ctx, "webhook", func(tx store.Tx, _ time.Time) (err error) {
		w, err = oneWebhook(ctx, tx, "", holdfast.WebhookID(r.Destination))
		return err
	})
	if holdfast.CodeOf(err) == holdfast.NotFound {
		return &delivery.RefusedError{ID: r.ID, Status: http.StatusGone, Reason: "the webhook was deleted"}
	}
	if err != nil {
		return err
	}
	sender := delivery.Sender{Client: s.webhooks, Secret: s.webhookSecret(w.ID), URL: w.URL, Timeout: webhookTimeout, Clock: s.databaseClock}
	err = sender.Attempt(ctx, delivery.Message{ID: r.ID, Kind: r.Kind, Body: r.Body})
	var private *privateError
	if errors.As(err, &private) {
		return &delivery.RefusedError{ID: r.ID, Status: http.StatusForbidden, Reason: "not sent: " + private.Error()}
	}
	return err
}

// webhookSecret signs what is sent to a webhook. It is derived from the cluster's key,
// so that no database holds it.
func (s *Service) webhookSecret(id holdfast.WebhookID) []byte {
	return derived(s.config.ClusterKey, "holdfast webhook secret v1", string(id))
}

// derived is a secret of one use and one name.
func derived(key []byte, use, name string) []byte {
	m := hmac.New(sha256.New, key)
	fmt.Fprintf(m, "%s/%d:%s", use, len(name), name)
	return m.Sum(nil)
}

func base64Of(raw []byte) string { return base64.StdEncoding.EncodeToString(raw) }

func fromBase64(text string) ([]byte, error) {
	raw, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		return nil, fmt.Errorf("base64: %w", err)
	}
	return raw, nil
}

// privateError says that an address is none that strangers may make this server call.
type privateError struct{ address string }

// Error names the address, and what would let it be called.
func (e *privateError) Error() string {
	return e.address + " is a private address, which webhooks may reach only where the server runs with --allow-private-webhooks"
}

// newWebhookClient makes connections to public addresses alone: the address is judged
// when it is dialled, after the name was resolved, so that no name and no change of one
// leads inside. No proxy of the environment is used, which would be asked instead.
func newWebhookClient(allowPrivate bool) *http.Client {
	dialer := &net.Dialer{Timeout: 5 * time.Second}
	if !allowPrivate {
		dialer.Control = func(_, address string, _ syscall.RawConn) error { return checkPublic(address) }
	}
	return &http.Client{Transport: &http.Transport{DialContext: dialer.DialContext, TLSHandshakeTimeout: 5 * time.Second,
		ResponseHeaderTimeout: webhookTimeout, MaxResponseHeaderBytes: 64 << 10, MaxIdleConns: 100, MaxIdleConnsPerHost: webhookEach,
		IdleConnTimeout: 30 * time.Second, ForceAttemptHTTP2: true}}
}

func checkPublic(address string) error {
	at, err := netip.ParseAddrPort(address)
	if err != nil {
		return fmt.Errorf("dial %s: %w", address, err)
	}
	if !public(at.Addr()) {
		return &privateError{at.Addr().String()}
	}
	return nil
}

// notPublic are the ranges that are no host's on the internet, beside those that
// package netip knows; those that wrap an IPv4 address are in it whole.
func notPublic() []netip.Prefix {
	return []netip.Prefix{
		netip.MustParsePrefix("0.0.0.0/8"), netip.MustParsePrefix("100.64.0.0/10"), netip.MustParsePrefix("192.0.0.0/24"),
		netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("198.18.0.0/15"), netip.MustParsePrefix("198.51.100.0/24"),
		netip.MustParsePrefix("203.0.113.0/24"), netip.MustParsePrefix("240.0.0.0/4"), netip.MustParsePrefix("64:ff9b::/96"),
		netip.MustParsePrefix("64:ff9b:1::/48"), netip.MustParsePrefix("100::/64"), netip.MustParsePrefix("2001::/23"),
		netip.MustParsePrefix("2001:db8::/32"), netip.MustParsePrefix("2002::/16"), netip.MustParsePrefix("::/96"),
	}
}

func public(at netip.Addr) bool {
	at = at.Unmap().WithZone("")
	if !at.IsGlobalUnicast() || at.IsPrivate() {
		return false // loopback, link-local, multicast and unspecified are no global unicast
	}
	for _, prefix := range notPublic() {
		if prefix.Contains(at) {
			return false
		}
	}
	return true
}

// reachable refuses a URL by whose literal address it can be known that nothing would
// be sent. Names are judged when they are dialled.
func (s *Service) reachable(text string) error {
	if s.config.AllowPrivateWebhooks {
		return nil
	}
	u, err := url.Parse(text)
	if err != nil {
		return holdfast.E(holdfast.InvalidArgument, holdfast.ReasonBadField, "url is no URL: %v", err).With("field", "url")
	}
	at, err := netip.ParseAddr(u.Hostname())
	if u.Hostname() == "localhost" {
		at, err = netip.IPv6Loopback(), nil
	}
	if err == nil && !public(at) {
		return holdfast.E(holdfast.InvalidArgument, holdfast.ReasonBadField, "url: %v", &privateError{at.String()}).With("field", "url")
	}
	return nil
}
