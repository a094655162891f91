package history

import (
	"context"
	"hash/fnv"
	"math/rand/v2"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/holdfast-dev/holdfast/rpc"
	"github.com/holdfast-dev/holdfast/transport"
)

// faultKey carries the fault that a call's connection will have.
type faultKey struct{}

func withFault(ctx context.Context, f transport.Fault) context.Context {
	return context.WithValue(ctx, faultKey{}, f)
}

// Edge is the clients' way to a server: over the network, with the faults that
// each call was given.
func Edge(serverURL string) (rpc.Services, *transport.Faulty) {
	c := rpc.NewHTTPClient()
	faulty := &transport.Faulty{Next: c.Transport, Plan: func(r *http.Request) transport.Fault {
		f, _ := r.Context().Value(faultKey{}).(transport.Fault) // none: none
		return f
	}}
	c.Transport = faulty
	return rpc.Dial(c, serverURL, ""), faulty
}

// chance is one kind of fault with how often it happens, in thousandths.
type chance struct {
	kind transport.Kind
	of   int
}

// edgeChances and hopChances are the faults of the clients' connections and of
// the hops between the parties.
func edgeChances() []chance {
	return []chance{{transport.Drop, 15}, {transport.LoseAnswer, 25}, {transport.Duplicate, 20}, {transport.Overlap, 20},
		{transport.CutRequest, 10}, {transport.CutResponse, 15}, {transport.Hang, 5}, {transport.Refuse, 10}, {transport.Replace, 15}}
}

func hopChances() []chance {
	return []chance{{transport.Drop, 10}, {transport.LoseAnswer, 15}, {transport.Duplicate, 20}, {transport.Overlap, 20},
		{transport.CutRequest, 5}, {transport.CutResponse, 10}, {transport.Hang, 4}, {transport.Refuse, 5}, {transport.Replace, 5}}
}

// pick chooses a fault.
func pick(r *rand.Rand, chances []chance, slowest time.Duration) transport.Fault {
	f := transport.Fault{Bytes: r.Int64N(200)}
	if r.IntN(10) == 0 {
		f.Delay = time.Duration(r.Int64N(int64(slowest)))
	}
	n := r.IntN(1000)
	for _, c := range chances {
		if n -= c.of; n < 0 {
			f.Kind = c.kind
			break
		}
	}
	return f
}

// Hops are the faults between the parties: the n-th request has that of a hash of
// the seed, its path and n.
type Hops struct {
	Seed uint64

	asked   atomic.Uint64
	planned [transport.Replace + 1]atomic.Int64
}

// Plan is the transport.Plan.
func (h *Hops) Plan(r *http.Request) transport.Fault {
	path := fnv.New64a()
	_, _ = path.Write([]byte(r.Method + r.URL.Path)) // a hash takes everything
	f := pick(rand.New(rand.NewPCG(h.Seed^path.Sum64(), h.asked.Add(1))), hopChances(), 10*time.Millisecond)
	h.planned[f.Kind].Add(1)
	return f
}

// Planned says how often a kind was chosen.
func (h *Hops) Planned(k transport.Kind) int64 { return h.planned[k].Load() }
