package inbox

import "sync"

// recentAtMost is how many deliveries each half of a Recent holds.
const recentAtMost = 8192

// Recent remembers some of the deliveries whose transactions this process has seen
// commit, so that a storm of repeats costs no look at the database. That a delivery
// is recorded never becomes untrue while its source can repeat it (see [Purge]); what
// is not remembered still goes through [Record]. It is safe for concurrent use.
type Recent struct {
	mu           sync.Mutex
	newer, older map[recentKey]struct{}
}

type recentKey struct{ source, id string }

// NewRecent remembers nothing yet.
func NewRecent() *Recent { return &Recent{newer: map[recentKey]struct{}{}} }

// Has says whether a delivery is known to be recorded.
func (r *Recent) Has(source, id string) bool {
	k := recentKey{source, id}
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, ok := r.newer[k]; ok {
		return true
	}
	_, ok := r.older[k]
	return ok
}

// Add is called once the transaction that recorded a delivery, or found it recorded,
// has committed.
func (r *Recent) Add(source, id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.newer) >= recentAtMost {
		r.older, r.newer = r.newer, make(map[recentKey]struct{}, recentAtMost)
	}
	r.newer[recentKey{source, id}] = struct{}{}
}
