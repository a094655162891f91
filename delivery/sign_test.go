package delivery_test

import (
	"bytes"
	"encoding/base64"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/delivery"
)

var (
	secret = []byte("0123456789abcdef0123456789abcdef")
	noon   = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
)

// The vector of the Standard Webhooks libraries' own tests.
func TestB8_SignatureIsStandardWebhooks(t *testing.T) {
	key, err := base64.StdEncoding.DecodeString("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
	if err != nil {
		t.Fatal(err)
	}
	h := delivery.Sign(key, "msg_p5jXN8AQM9LWM0D4loKWxJek", time.Unix(1614265330, 0), []byte(`{"test": 2432232314}`))
	want := http.Header{
		"Webhook-Id":        {"msg_p5jXN8AQM9LWM0D4loKWxJek"},
		"Webhook-Timestamp": {"1614265330"},
		"Webhook-Signature": {"v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="},
	}
	for key, values := range want {
		if h.Get(key) != values[0] {
			t.Errorf("%s: %q, want %q", key, h.Get(key), values[0])
		}
	}
}

func TestB8_VerifyAcceptsOnlyWhatWasSigned(t *testing.T) {
	body := []byte(`{"a":1}`)
	good := func() http.Header { return delivery.Sign(secret, "dl-1", noon, body) }
	late := delivery.WithTolerance(noon.Add(6*time.Minute), delivery.ThirdPartyTolerance)
	cases := []struct {
		name    string
		change  func(http.Header) http.Header
		secret  []byte
		body    []byte
		options []delivery.VerifyOption
		ok      bool
	}{
		{name: "as signed", ok: true},
		{name: "another body", body: []byte(`{"a":2}`)},
		{name: "another secret", secret: []byte("x")},
		{name: "no secret", secret: []byte{}},
		{name: "another id", change: set(delivery.HeaderID, "dl-2")},
		{name: "no id", change: set(delivery.HeaderID, "")},
		{name: "an id with a dot", change: func(http.Header) http.Header { return delivery.Sign(secret, "a.1", noon, body) }},
		{name: "an id with a space", change: func(http.Header) http.Header { return delivery.Sign(secret, "a 1", noon, body) }},
		{name: "a long id", change: func(http.Header) http.Header {
			return delivery.Sign(secret, strings.Repeat("a", delivery.MaxID+1), noon, body)
		}},
		{name: "another timestamp", change: set(delivery.HeaderTimestamp, "1772366401")},
		{name: "another spelling of it", change: set(delivery.HeaderTimestamp, "01772366400")},
		{name: "no number", change: set(delivery.HeaderTimestamp, "noon")},
		{name: "no signature", change: set(delivery.HeaderSignature, "")},
		{name: "the version missing", change: func(h http.Header) http.Header {
			return set(delivery.HeaderSignature, strings.TrimPrefix(h.Get(delivery.HeaderSignature), "v1,"))(h)
		}},
		{name: "another version", change: func(h http.Header) http.Header {
			return set(delivery.HeaderSignature, "v2"+strings.TrimPrefix(h.Get(delivery.HeaderSignature), "v1"))(h)
		}},
		{name: "several, one right", ok: true, change: func(h http.Header) http.Header {
			return set(delivery.HeaderSignature, "v1,AAAA v1a,zzzz junk "+h.Get(delivery.HeaderSignature)+" v1,BBBB")(h)
		}},
		{name: "several headers, one right", ok: true, change: func(h http.Header) http.Header {
			h[delivery.HeaderSignature] = []string{"v1,AAAA", h.Get(delivery.HeaderSignature)}
			return h
		}},
		{name: "a flood before the right one", change: func(h http.Header) http.Header {
			return set(delivery.HeaderSignature, strings.Repeat("v1,AAAA ", 1000)+h.Get(delivery.HeaderSignature))(h)
		}},
		{name: "late, without tolerance", ok: true},
		{name: "late, with tolerance", options: []delivery.VerifyOption{late}},
		{name: "from the future", options: []delivery.VerifyOption{delivery.WithTolerance(noon.Add(-6*time.Minute), delivery.ThirdPartyTolerance)}},
		{name: "within tolerance", ok: true, options: []delivery.VerifyOption{delivery.WithTolerance(noon.Add(4*time.Minute), delivery.ThirdPartyTolerance)}},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			h := good()
			if tc.change != nil {
				h = tc.change(h)
			}
			key, content := secret, body
			if tc.secret != nil {
				key = tc.secret
			}
			if tc.body != nil {
				content = tc.body
			}
			signed, err := delivery.Verify(key, h, content, tc.options...)
			if (err == nil) != tc.ok || err != nil && !errors.Is(err, delivery.ErrUnauthenticated) {
				t.Fatalf("error %v", err)
			}
			if tc.ok && (signed.ID != "dl-1" || !signed.At.Equal(noon)) {
				t.Errorf("signed %+v", signed)
			}
		})
	}
}

func set(key, value string) func(http.Header) http.Header {
	return func(h http.Header) http.Header { h.Set(key, value); return h }
}

// contract: B2, T50
func TestB2_DerivedIDsAreEqualForOneEventAndNoOther(t *testing.T) {
	type event struct {
		kind, instance string
		incarnation    int64
		cause          string
	}
	events := []event{
		{"instance.ready", "in-1", 1, "boot"}, {"instance.ready", "in-1", 2, "boot"}, {"instance.ready", "in-2", 1, "boot"},
		{"instance.failed", "in-1", 1, "boot"}, {"instance.ready", "in-1", 1, "other"}, {"instance.ready", "in-11", 1, "boot"},
		{"instance.ready", "in-1", 11, "boot"}, {"instance.readyi", "n-1", 1, "boot"}, {"instance.ready", "in-1", 1, ""},
	}
	seen := map[string]event{}
	for _, e := range events {
		id := delivery.DeriveID(e.kind, e.instance, e.incarnation, e.cause)
		if again := delivery.DeriveID(e.kind, e.instance, e.incarnation, e.cause); again != id {
			t.Errorf("%v: %s, then %s", e, id, again)
		}
		if other, ok := seen[id]; ok {
			t.Errorf("%v and %v are both %s", e, other, id)
		}
		seen[id] = e
		if len(id) > delivery.MaxID || strings.Trim(id, "abcdefghijklmnopqrstuvwxyz0123456789-") != "" {
			t.Errorf("id %q", id)
		}
	}
	if id := delivery.DeriveID("instance.ready", "in-1", 1, "boot"); id != "ev-ffkv3wmem2355tb1ym24a0dv36eqsa8x" {
		t.Errorf("a release changed the ids of events in flight: %s", id)
	}
}

func TestB2_NewIDsDifferAndSortByTime(t *testing.T) {
	before := ""
	for ms := range 1000 {
		id := delivery.NewID(noon.Add(time.Duration(ms)*time.Millisecond), nil)
		if id <= before {
			t.Fatalf("%s after %s", id, before)
		}
		before = id
	}
	if a, b := delivery.NewID(noon, nil), delivery.NewID(noon, nil); a == b {
		t.Errorf("%s twice", a)
	}
	if got := delivery.NewID(time.UnixMilli(0), bytes.NewReader(make([]byte, 10))); got != "dl-"+strings.Repeat("0", 26) {
		t.Errorf("id of zeros: %s", got)
	}
	defer func() {
		if recover() == nil {
			t.Error("an id without randomness was minted")
		}
	}()
	delivery.NewID(noon, bytes.NewReader(nil))
}

// contract: B8, T50
func TestB8_EachBootHasItsOwnSecret(t *testing.T) {
	key := []byte("cluster")
	seen := map[string]bool{}
	for _, s := range [][]byte{
		delivery.InstanceSecret(key, "in-1", 1), delivery.InstanceSecret(key, "in-1", 2),
		delivery.InstanceSecret(key, "in-2", 1), delivery.InstanceSecret([]byte("other"), "in-1", 1),
		delivery.InstanceSecret(key, "in-11", 1), delivery.InstanceSecret(key, "in-1", 11),
	} {
		if len(s) != 32 || seen[string(s)] {
			t.Errorf("secret of %d bytes, seen before: %v", len(s), seen[string(s)])
		}
		seen[string(s)] = true
	}
	if !bytes.Equal(delivery.InstanceSecret(key, "in-1", 1), delivery.InstanceSecret(key, "in-1", 1)) {
		t.Error("a replica derives another secret")
	}
}
