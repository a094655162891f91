package simulation

import (
	"encoding/binary"
	"io"
	"sync"
	"time"
)

// hash mixes a seed with words into 64 bits: FNV-1a, then a finalizer, since FNV
// alone spreads the last bytes badly. It is the same on every machine.
func hash(seed uint64, words ...string) uint64 {
	h := uint64(14695981039346656037) ^ mix(seed)
	for _, w := range words {
		for i := range len(w) {
			h = (h ^ uint64(w[i])) * 1099511628211
		}
		h = (h ^ 0xff) * 1099511628211
	}
	return mix(h)
}

func mix(h uint64) uint64 {
	h ^= h >> 33
	h *= 0xff51afd7ed558ccd
	h ^= h >> 33
	h *= 0xc4ceb9fe1a85ec53
	return h ^ h>>33
}

// between is a duration from least up to most, without most, chosen by h.
func between(h uint64, least, most time.Duration) time.Duration {
	return least + time.Duration(h%uint64(most-least))
}

// fraction is a number in [0, 1) chosen by h.
func fraction(h uint64) float64 { return float64(h>>11) / (1 << 53) }

// chance gives a party random bytes that depend on when it asks, not on how often
// anyone asked before: at one instant one goroutine runs.
type chance struct {
	seed uint64
	who  string

	mu sync.Mutex
	at int64
	n  int64
}

var _ io.Reader = (*chance)(nil)

// Read implements io.Reader.
func (c *chance) Read(p []byte) (int, error) {
	c.mu.Lock()
	now := time.Now().UnixNano()
	if now != c.at {
		c.at, c.n = now, 0
	}
	c.n++
	state := hash(c.seed, c.who) ^ mix(uint64(now)) ^ mix(uint64(c.n)<<1)
	c.mu.Unlock()
	var word [8]byte
	for i := 0; i < len(p); i += len(word) {
		state = mix(state + 0x9e3779b97f4a7c15)
		binary.LittleEndian.PutUint64(word[:], state)
		copy(p[i:], word[:])
	}
	return len(p), nil
}
