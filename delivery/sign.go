package delivery

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// The headers of Standard Webhooks (contract: B8).
const (
	HeaderID        = "Webhook-Id"        // the delivery id
	HeaderTimestamp = "Webhook-Timestamp" // the attempt's instant, Unix seconds
	HeaderSignature = "Webhook-Signature" // "v1,<base64>", several separated by spaces
)

// ThirdPartyTolerance is how far the timestamp of a sender other than an instance
// may be from the receiver's clock (contract: B8).
const ThirdPartyTolerance = 5 * time.Minute

// maxSignatures bounds the work that an unauthenticated header can ask for.
const maxSignatures = 16

// Signed is what a valid signature vouches for beside the body.
type Signed struct {
	ID string    // the delivery id
	At time.Time // the instant the sender claims for this attempt, UTC, whole seconds
}

// Sign gives the three headers of one attempt. The id is the event's, the same on
// every attempt; at is this attempt's. contract: B8
func Sign(secret []byte, id string, at time.Time, body []byte) http.Header {
	stamp := strconv.FormatInt(at.Unix(), 10)
	h := make(http.Header, 3)
	h.Set(HeaderID, id)
	h.Set(HeaderTimestamp, stamp)
	h.Set(HeaderSignature, "v1,"+base64.StdEncoding.EncodeToString(mac(secret, id, stamp, body)))
	return h
}

func mac(secret []byte, id, stamp string, body []byte) []byte {
	m := hmac.New(sha256.New, secret)
	m.Write([]byte(id + "." + stamp + "."))
	m.Write(body)
	return m.Sum(nil)
}

// VerifyOption narrows what [Verify] accepts.
type VerifyOption func(at time.Time) error

// WithTolerance refuses a timestamp further than tolerance from now. Instances
// have none: one that was suspended for hours and resumed is honest, and its id
// and incarnation stop replays (contract: B8).
func WithTolerance(now time.Time, tolerance time.Duration) VerifyOption {
	return func(at time.Time) error {
		if d := now.Sub(at).Abs(); d > tolerance {
			return fmt.Errorf("its timestamp is %s from this clock, more than %s", d.Round(time.Second), tolerance)
		}
		return nil
	}
}

// Verify checks the headers against the body and the secret. Any valid one of
// several signatures is enough, so that secrets can be rotated; unknown signature
// versions are skipped. The comparison takes constant time. Errors wrap
// [ErrUnauthenticated] and never tell which part of a signature was wrong.
func Verify(secret []byte, h http.Header, body []byte, options ...VerifyOption) (Signed, error) {
	id, stamp := h.Get(HeaderID), h.Get(HeaderTimestamp)
	if len(secret) == 0 {
		return Signed{}, fmt.Errorf("%w: no secret to verify with", ErrUnauthenticated)
	}
	if err := checkID(id); err != nil {
		return Signed{}, fmt.Errorf("%w: %s: %w", ErrUnauthenticated, HeaderID, err)
	}
	// The canonical form alone: "+1" and "01" would be second spellings of one instant.
	seconds, err := strconv.ParseInt(stamp, 10, 64)
	if err != nil || strconv.FormatInt(seconds, 10) != stamp {
		return Signed{}, fmt.Errorf("%w: %s %q is no Unix time in seconds", ErrUnauthenticated, HeaderTimestamp, stamp)
	}
	if !anyMatch(h.Values(HeaderSignature), mac(secret, id, stamp, body)) {
		return Signed{}, fmt.Errorf("%w: no signature in %s matches", ErrUnauthenticated, HeaderSignature)
	}
	at := time.Unix(seconds, 0).UTC()
	for _, check := range options {
		if err := check(at); err != nil {
			return Signed{}, fmt.Errorf("%w: %w", ErrUnauthenticated, err)
		}
	}
	return Signed{ID: id, At: at}, nil
}

func anyMatch(values []string, want []byte) bool {
	found := false
	for i, s := range strings.Fields(strings.Join(values, " ")) {
		if i == maxSignatures {
			break
		}
		version, text, _ := strings.Cut(s, ",")
		got, err := base64.StdEncoding.DecodeString(text)
		// No early return: the time taken does not tell which one matched.
		if version == "v1" && err == nil && hmac.Equal(got, want) {
			found = true
		}
	}
	return found
}

// InstanceSecret derives the 32-byte secret of one boot of an instance from the
// cluster's key, so that every replica can verify every boot without a table, and
// neither a fork nor an earlier boot holds it (T50). contract: B8
func InstanceSecret(clusterKey []byte, instance string, incarnation int64) []byte {
	m := hmac.New(sha256.New, clusterKey)
	m.Write([]byte(join("holdfast instance secret v1", instance, strconv.FormatInt(incarnation, 10))))
	return m.Sum(nil)
}
