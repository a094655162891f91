package holdfast

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base32"
	"encoding/binary"
	"fmt"
	"io"
	"strings"
	"time"
)

// Ids are DNS labels: a kind, a hyphen and 26 lower-case Crockford base32
// characters (56 bits of microseconds, 72 random bits), sortable by time.
type (
	SandboxID   string // sb-…
	OperationID string // op-…
	InstanceID  string // in-…
	HostID      string // ho-…
	ProcessID   string // pr-…
	ProjectID   string // pj-…, or the project "default"
	KeyID       string // ky-…

	CheckpointID  string // ck-…
	EnvironmentID string // en-…
	BuildID       string // bd-…
	SessionID     string // se-…
	TaskID        string // tk-…
	WebhookID     string // wh-…
	EventID       string // ev-…
	HookActionID  string // ha-…
)

// The prefixes of the ids, one per kind of resource.
const (
	PrefixSandbox   = "sb"
	PrefixOperation = "op"
	PrefixInstance  = "in"
	PrefixHost      = "ho"
	PrefixProcess   = "pr"
	PrefixProject   = "pj"
	PrefixKey       = "ky"

	PrefixCheckpoint  = "ck"
	PrefixEnvironment = "en"
	PrefixBuild       = "bd"
	PrefixSession     = "se"
	PrefixTask        = "tk"
	PrefixWebhook     = "wh"
	PrefixEvent       = "ev"
	PrefixHookAction  = "ha"
)

const idLength = 26

var crockford = base32.NewEncoding("0123456789abcdefghjkmnpqrstvwxyz").WithPadding(base32.NoPadding)

// IDs mints ids. The zero value reads the time from the system and randomness
// from crypto/rand; a simulation replaces both.
type IDs struct {
	Now  func() time.Time
	Rand io.Reader
}

// New returns a fresh id with the given prefix.
func (g IDs) New(prefix string) string {
	now := time.Now
	if g.Now != nil {
		now = g.Now
	}
	source := rand.Reader
	if g.Rand != nil {
		source = g.Rand
	}
	var raw [16]byte
	if _, err := io.ReadFull(source, raw[7:]); err != nil {
		// crypto/rand never fails on Linux; an id without randomness would collide.
		panic(fmt.Sprintf("holdfast: no randomness for an id: %v", err))
	}
	var stamp [8]byte
	binary.BigEndian.PutUint64(stamp[:], uint64(now().UnixMicro()))
	copy(raw[:7], stamp[1:])
	return prefix + "-" + crockford.EncodeToString(raw[:])
}

// DeriveID returns the id that follows from another for a purpose, always the same,
// with the other's instant: what drives one thing through another finds it again by it.
func DeriveID(prefix, from, purpose string) string {
	sum := sha256.Sum256([]byte(from + "\x00" + purpose))
	_, rest, ok := strings.Cut(from, "-")
	raw, err := crockford.DecodeString(rest)
	if !ok || err != nil || len(raw) != 16 {
		raw = make([]byte, 16)
	}
	copy(raw[7:], sum[:9])
	return prefix + "-" + crockford.EncodeToString(raw)
}

// CheckID reports whether id has the shape of an id with that prefix, as an
// INVALID_ARGUMENT error that names the field.
func CheckID(field, prefix, id string) error {
	rest, ok := strings.CutPrefix(id, prefix+"-")
	if ok && len(rest) == idLength && strings.Trim(rest, "0123456789abcdefghjkmnpqrstvwxyz") == "" {
		return nil
	}
	shown := id
	if len(shown) > 64 {
		shown = shown[:64] + "…"
	}
	return E(InvalidArgument, ReasonBadField, "%s %q is not an id: expected %s- and %d characters of 0-9 and a-z (without i, l, o, u)",
		field, shown, prefix, idLength).With("field", field)
}

// BornAt reads from an id when it was minted, to the microsecond.
func BornAt(id string) (time.Time, error) {
	_, rest, ok := strings.Cut(id, "-")
	if !ok || len(rest) != idLength {
		return time.Time{}, fmt.Errorf("%q is not an id", id)
	}
	raw, err := crockford.DecodeString(rest)
	if err != nil {
		return time.Time{}, fmt.Errorf("%q is not an id: %w", id, err)
	}
	var stamp [8]byte
	copy(stamp[1:], raw[:7])
	return time.UnixMicro(int64(binary.BigEndian.Uint64(stamp[:]))).UTC(), nil
}
