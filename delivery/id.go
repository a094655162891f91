package delivery

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base32"
	"encoding/binary"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
)

// MaxID is the longest delivery id, in bytes.
const MaxID = 128

// encoding keeps the byte order of what it encodes and needs no quoting in URLs,
// headers and file names.
const alphabet = "0123456789abcdefghjkmnpqrstvwxyz"

func encode(b []byte) string {
	return base32.NewEncoding(alphabet).WithPadding(base32.NoPadding).EncodeToString(b)
}

// NewID mints the id of one event: "dl-", the millisecond and 80 random bits, so
// that ids sort by the time they were minted. A nil source means crypto/rand. It
// panics when the source fails, as crypto/rand itself does: an event that cannot
// be told from another must not be sent.
//
// Use it where the sender keeps the id for as long as it may retry; a sender that
// may restart in between uses [DeriveID]. contract: B2
func NewID(now time.Time, source io.Reader) string {
	if source == nil {
		source = rand.Reader
	}
	var b [16]byte
	binary.BigEndian.PutUint64(b[:8], uint64(now.UnixMilli())<<16)
	if _, err := io.ReadFull(source, b[6:]); err != nil {
		panic(fmt.Sprintf("delivery: no randomness for an id: %v", err))
	}
	return "dl-" + encode(b[:])
}

// DeriveID gives the id of the event that cause made happen to one boot of an
// instance. The same event has the same id, whoever derives it and however often;
// a fork, which is another instance, never re-sends its source's events under
// their ids (T50). contract: B2
func DeriveID(kind, instance string, incarnation int64, cause string) string {
	sum := digest("holdfast delivery id v1", kind, instance, strconv.FormatInt(incarnation, 10), cause)
	return "ev-" + encode(sum[:20])
}

// InstanceSource names one boot of an instance as the source of deliveries, for
// the receiver's record of ids (contract: B3).
func InstanceSource(instance string, incarnation int64) string {
	return "instance/" + instance + "/" + strconv.FormatInt(incarnation, 10)
}

// digest hashes fields with their lengths, so that no two lists of fields run
// into one another.
func digest(fields ...string) [sha256.Size]byte {
	return sha256.Sum256([]byte(join(fields...)))
}

func join(fields ...string) string {
	var b strings.Builder
	for _, f := range fields {
		b.WriteString(strconv.Itoa(len(f)))
		b.WriteByte(':')
		b.WriteString(f)
	}
	return b.String()
}

// checkID holds an id to visible ASCII without the dot, which separates the parts
// of what is signed: with it, one signature would fit two messages.
func checkID(id string) error {
	if id == "" || len(id) > MaxID {
		return fmt.Errorf("a delivery id has 1 to %d characters, this one has %d", MaxID, len(id))
	}
	for i := range len(id) {
		if c := id[i]; c <= ' ' || c > '~' || c == '.' {
			return fmt.Errorf("a delivery id is visible ASCII without a dot, this one is %q", id)
		}
	}
	return nil
}
