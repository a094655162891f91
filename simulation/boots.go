package simulation

import (
	"sync"
	"time"

	"github.com/holdfast-dev/holdfast"
)

// boots is every boot that began, by instance and incarnation, and what guests were
// made to start.
type boots struct {
	mu     *sync.Mutex
	all    map[holdfast.InstanceRef][]boot
	roots  map[holdfast.InstanceRef]string // of their files
	starts map[string][]*start             // by what was asked for, see startOf
}

type boot struct {
	host string
	at   time.Time
}

func newBoots() boots {
	return boots{mu: &sync.Mutex{}, all: map[holdfast.InstanceRef][]boot{}, roots: map[holdfast.InstanceRef]string{}, starts: map[string][]*start{}}
}

func (b boots) began(host string, ref holdfast.InstanceRef) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.all[ref] = append(b.all[ref], boot{host: host, at: time.Now()})
}

func (b boots) count(ref holdfast.InstanceRef) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.all[ref])
}

// of are the boots of an instance.
func (b boots) of(id holdfast.InstanceID) map[holdfast.InstanceRef][]boot {
	b.mu.Lock()
	defer b.mu.Unlock()
	found := map[holdfast.InstanceRef][]boot{}
	for ref, all := range b.all {
		if ref.Instance == id {
			found[ref] = append([]boot(nil), all...)
		}
	}
	return found
}

// root is the directory of a boot's files; false where it never had a guest.
func (b boots) root(ref holdfast.InstanceRef) (string, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	root, known := b.roots[ref]
	return root, known
}

func (b boots) rooted(ref holdfast.InstanceRef, root string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.roots[ref] = root
}
