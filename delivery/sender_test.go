package delivery_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-dev/holdfast/delivery"
)

// script is a transport that answers each attempt in turn: a status, or 0 for a
// failure of the transport, or -1 for silence. It keeps what it saw.
type script struct {
	answers []int

	mu     sync.Mutex
	at     []time.Time
	ids    []string
	bodies []string
}

func (s *script) RoundTrip(r *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	n := len(s.at)
	s.at = append(s.at, time.Now())
	s.ids = append(s.ids, r.Header.Get(delivery.HeaderID))
	s.bodies = append(s.bodies, string(body))
	s.mu.Unlock()
	if _, err := delivery.Verify(secret, r.Header, body); err != nil {
		return nil, err
	}
	switch status := s.answers[min(n, len(s.answers)-1)]; status {
	case 0:
		return nil, errors.New("connection lost")
	case -1:
		<-r.Context().Done()
		return nil, r.Context().Err()
	default:
		return &http.Response{StatusCode: status, Header: http.Header{"Retry-After": {"7"}},
			Body: io.NopCloser(strings.NewReader("words\n")), Request: r}, nil
	}
}

func sender(s *script) *delivery.Sender {
	return &delivery.Sender{Client: &http.Client{Transport: s}, Secret: secret, URL: "http://receiver/",
		Jitter: func(string, int) float64 { return 0.5 }}
}

var event = delivery.Message{ID: "dl-1", Kind: "instance.ready", Body: []byte(`{"n": 1}`)}

func TestB5_ThreeAttemptsOneAndFiveSecondsApartNeverAfterA4xx(t *testing.T) {
	cases := []struct {
		name    string
		answers []int
		at      []time.Duration
		outcome string
	}{
		{"taken at once", []int{204}, []time.Duration{0}, "nil"},
		{"taken the second time", []int{0, 200}, []time.Duration{0, time.Second}, "nil"},
		{"taken the third time", []int{503, 500, 299}, []time.Duration{0, time.Second, 6 * time.Second}, "nil"},
		{"never taken", []int{503}, []time.Duration{0, time.Second, 6 * time.Second}, "undelivered"},
		{"redirected", []int{307}, []time.Duration{0, time.Second, 6 * time.Second}, "undelivered"},
		{"silence", []int{-1}, []time.Duration{0, 11 * time.Second, 26 * time.Second}, "undelivered"},
		{"refused", []int{400}, []time.Duration{0}, "refused"},
		{"refused for now", []int{429}, []time.Duration{0}, "refused"},
		{"refused the second time", []int{0, 404}, []time.Duration{0, time.Second}, "refused"},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, start := &script{answers: tc.answers}, time.Now()
				err := sender(s).Send(t.Context(), event)
				if got := kind(err); got != tc.outcome {
					t.Errorf("outcome %s (%v), want %s", got, err, tc.outcome)
				}
				if len(s.at) != len(tc.at) {
					t.Fatalf("%d attempts, want %d", len(s.at), len(tc.at))
				}
				for i, at := range s.at {
					if at.Sub(start) != tc.at[i] {
						t.Errorf("attempt %d after %v, want %v", i+1, at.Sub(start), tc.at[i])
					}
					if s.ids[i] != "dl-1" || s.bodies[i] != `{"type":"instance.ready","data":{"n": 1}}` {
						t.Errorf("attempt %d sent %s %s", i+1, s.ids[i], s.bodies[i])
					}
				}
			})
		})
	}
}

func kind(err error) string {
	var refused *delivery.RefusedError
	var undelivered *delivery.UndeliveredError
	switch {
	case err == nil:
		return "nil"
	case errors.As(err, &refused):
		return "refused"
	case errors.As(err, &undelivered):
		return "undelivered"
	}
	return "other"
}

func TestB5_ErrorsSayWhatTheReceiverSaid(t *testing.T) {
	var refused *delivery.RefusedError
	err := sender(&script{answers: []int{429}}).Attempt(t.Context(), event)
	if !errors.As(err, &refused) || *refused != (delivery.RefusedError{ID: "dl-1", Status: 429, Reason: "words", RetryAfter: 7 * time.Second}) {
		t.Errorf("%#v", err)
	}
	var status *delivery.StatusError
	s := &script{answers: []int{503}}
	err = sender(s).Attempt(t.Context(), event)
	if !errors.As(err, &status) || *status != (delivery.StatusError{ID: "dl-1", Status: 503, Reason: "words", RetryAfter: 7 * time.Second}) {
		t.Errorf("%#v", err)
	}
	if len(s.at) != 1 {
		t.Errorf("Attempt made %d attempts (T22)", len(s.at))
	}
}

func TestT23_JitterSpreadsThePauses(t *testing.T) {
	for _, tc := range []struct {
		jitter, spread float64
		want           [2]time.Duration
	}{
		{0, 0, [2]time.Duration{800 * time.Millisecond, 4 * time.Second}},
		{0.999999999, 0, [2]time.Duration{1200 * time.Millisecond, 6 * time.Second}},
		{0, 0.5, [2]time.Duration{500 * time.Millisecond, 2500 * time.Millisecond}},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := &script{answers: []int{0}}
			from := sender(s)
			from.Spread = tc.spread
			asked := map[int]string{}
			from.Jitter = func(id string, attempt int) float64 { asked[attempt] = id; return tc.jitter }
			if err := from.Send(t.Context(), event); err == nil {
				t.Fatal("delivered")
			}
			for i, want := range tc.want {
				if got := s.at[i+1].Sub(s.at[i]).Round(time.Millisecond); got != want {
					t.Errorf("jitter %v: pause %d is %v, want %v", tc.jitter, i+1, got, want)
				}
			}
			if asked[1] != "dl-1" || asked[2] != "dl-1" {
				t.Errorf("jitter was asked for %v", asked)
			}
		})
	}
}

// contract: A2, T46
func TestT46_SendSaysThatACancelledDeliveryIsUnknown(t *testing.T) {
	for name, after := range map[string]time.Duration{"during an attempt": 5 * time.Second, "between attempts": 10500 * time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancelCause(t.Context())
				why := errors.New("shutting down")
				time.AfterFunc(after, func() { cancel(why) })
				start := time.Now()
				s := &script{answers: []int{-1}}
				err := sender(s).Send(ctx, event)
				var undelivered *delivery.UndeliveredError
				if !errors.As(err, &undelivered) || undelivered.Attempts != 1 || len(s.at) != 1 || !errors.Is(err, why) {
					t.Errorf("%v after %d attempts", err, len(s.at))
				}
				if time.Since(start) != after {
					t.Errorf("returned after %v", time.Since(start))
				}
			})
		})
	}
}

func TestWhatCannotBeSentIsNotSent(t *testing.T) {
	s := &script{answers: []int{204}}
	noSecret := sender(s)
	noSecret.Secret = nil
	for name, err := range map[string]error{
		"no secret": noSecret.Send(t.Context(), event),
		"no id":     sender(s).Send(t.Context(), delivery.Message{Kind: "k"}),
		"dotted id": sender(s).Send(t.Context(), delivery.Message{ID: "a.b", Kind: "k"}),
		"no kind":   sender(s).Send(t.Context(), delivery.Message{ID: "a"}),
		"no JSON":   sender(s).Send(t.Context(), delivery.Message{ID: "a", Kind: "k", Body: []byte("{")}),
	} {
		if err == nil || kind(err) != "other" {
			t.Errorf("%s: %v", name, err)
		}
	}
	if len(s.at) != 0 {
		t.Errorf("%d attempts", len(s.at))
	}
}

func TestRedirectsGetNoSecretsAndNoBody(t *testing.T) {
	reached := false
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached = true }))
	defer other.Close()
	first := httptest.NewServer(http.RedirectHandler(other.URL, http.StatusTemporaryRedirect))
	defer first.Close()
	err := (&delivery.Sender{Secret: secret, URL: first.URL}).Attempt(t.Context(), event)
	var status *delivery.StatusError
	if !errors.As(err, &status) || status.Status != http.StatusTemporaryRedirect || reached {
		t.Errorf("%v, reached %v", err, reached)
	}
}
