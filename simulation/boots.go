package simulation

import (
	"sync"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/guestagent"
)

// boots is every boot that began, by instance and incarnation, and how many
// processes were started in it.
type boots struct {
	mu     *sync.Mutex
	all    map[holdfast.InstanceRef][]boot
	starts map[holdfast.InstanceRef]int
}

type boot struct {
	host string
	at   time.Time
}

func newBoots() boots {
	return boots{mu: &sync.Mutex{}, all: map[holdfast.InstanceRef][]boot{}, starts: map[holdfast.InstanceRef]int{}}
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

// counting counts the processes that a guest starts.
type counting struct {
	guestagent.Executor
	boots boots
	ref   holdfast.InstanceRef
}

// Start implements guestagent.Executor.
func (c counting) Start(command guestagent.Command) (guestagent.Child, error) {
	c.boots.mu.Lock()
	c.boots.starts[c.ref]++
	c.boots.mu.Unlock()
	return c.Executor.Start(command)
}
