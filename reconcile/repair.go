package reconcile

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// What a Repair answers when it has no value.
var (
	// ErrNotFound is the authority's own word that there is no such thing. Ask returns it, wrapped or not; anything
	// else that Ask returns means that the authority gave no answer (trap T32).
	ErrNotFound = errors.New("the authority knows no such thing")
	// ErrUnavailable means that the fact is not recorded and that its authority gave no answer. A retry may help.
	ErrUnavailable = errors.New("the authority gave no answer")
)

// Known is what is recorded of a fact.
type Known[V any] struct {
	Value      V
	Present    bool  // there is a Value, of whatever age
	Current    bool  // Value belongs to Generation; false is a miss
	Generation int64 // that was read, and on which a write is conditional
}

// Answer is a fact as well as it can be had.
type Answer[V any] struct {
	Value V
	Stale bool // the authority gave no answer; this is the last known value (contract: D2)
}

// Repair answers reads of a fact that another party is the authority for (contract: D1, D2). The usual case, where a
// callback brought the fact, is one Load. On a miss, the authority is asked, one shared call for all who miss at once,
// and its answer is stored and returned. Nothing is written when the authority gave no answer or knows no such thing.
//
// Its fields are set before the first Get and not changed after. It is safe for concurrent use.
type Repair[K comparable, V any] struct {
	// Load reads what is recorded. Nothing known is the zero Known with the Generation, and no error.
	Load func(ctx context.Context, key K) (Known[V], error)
	// Ask asks the authority about the fact as of a generation.
	Ask func(ctx context.Context, key K, generation int64) (V, error)
	// Store records the answer if the generation is still the one that was read, and says whether it did (trap T34).
	Store func(ctx context.Context, key K, readGeneration int64, value V) (stored bool, err error)
	// Timeout bounds a shared call, which no caller's leaving ends. 0: 10 s.
	Timeout time.Duration

	mu      sync.Mutex
	flights map[flightKey[K]]*flight[V]
}

// flightKey holds the generation too: who reads a newer one never shares an older one's answer.
type flightKey[K comparable] struct {
	key        K
	generation int64
}

type flight[V any] struct {
	done   chan struct{}
	answer Answer[V]
	err    error
}

// repairTurns bounds how often an answer may be overtaken by a newer generation before Get gives up.
const repairTurns = 3

// Get returns the fact. Its error is ErrNotFound on the authority's word, ErrUnavailable when there is neither a last
// known value nor an answer, ctx's error, or a failure of Load or Store.
func (r *Repair[K, V]) Get(ctx context.Context, key K) (Answer[V], error) {
	for range repairTurns {
		known, err := r.Load(ctx, key)
		if err != nil {
			return Answer[V]{}, fmt.Errorf("read what is recorded: %w", err)
		}
		if known.Present && known.Current {
			return Answer[V]{Value: known.Value}, nil
		}
		answer, err := r.share(ctx, key, known.Generation)
		if !errors.Is(err, errOvertaken) {
			return answer, err
		}
	}
	return Answer[V]{}, fmt.Errorf("the record changed faster than its authority answered: %w", ErrUnavailable)
}

// errOvertaken says that a newer generation was recorded while the authority was asked.
var errOvertaken = errors.New("a newer generation was recorded")

// share joins the call in flight for this key and generation, or begins it (trap T35).
func (r *Repair[K, V]) share(ctx context.Context, key K, generation int64) (Answer[V], error) {
	id := flightKey[K]{key, generation}
	r.mu.Lock()
	f, ok := r.flights[id]
	if !ok {
		f = &flight[V]{done: make(chan struct{})}
		if r.flights == nil {
			r.flights = map[flightKey[K]]*flight[V]{}
		}
		r.flights[id] = f
		go r.fly(context.WithoutCancel(ctx), id, f)
	}
	r.mu.Unlock()
	select {
	case <-f.done:
		return f.answer, f.err
	case <-ctx.Done():
		return Answer[V]{}, ctx.Err()
	}
}

func (r *Repair[K, V]) fly(ctx context.Context, id flightKey[K], f *flight[V]) {
	timeout := r.Timeout
	if timeout <= 0 {
		timeout = 10 * time.Second
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	f.err = errors.New("the call ended its goroutine")
	defer func() {
		if p := recover(); p != nil {
			f.err = panicked(p)
		}
		r.mu.Lock()
		delete(r.flights, id)
		r.mu.Unlock()
		close(f.done)
	}()
	f.answer, f.err = r.ask(ctx, id.key, id.generation)
}

func (r *Repair[K, V]) ask(ctx context.Context, key K, generation int64) (Answer[V], error) {
	// A call for the same miss may have ended between the caller's look and this one.
	known, err := r.Load(ctx, key)
	switch {
	case err != nil:
		return Answer[V]{}, fmt.Errorf("read what is recorded: %w", err)
	case known.Generation != generation:
		return Answer[V]{}, errOvertaken
	case known.Present && known.Current:
		return Answer[V]{Value: known.Value}, nil
	}
	value, err := r.Ask(ctx, key, generation)
	switch {
	case errors.Is(err, ErrNotFound):
		return Answer[V]{}, fmt.Errorf("ask the authority: %w", err)
	case err != nil && known.Present:
		return Answer[V]{Value: known.Value, Stale: true}, nil
	case err != nil:
		return Answer[V]{}, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	stored, err := r.Store(ctx, key, generation, value)
	switch {
	case err != nil:
		return Answer[V]{}, fmt.Errorf("store the authority's answer: %w", err)
	case !stored:
		return Answer[V]{}, errOvertaken
	}
	return Answer[V]{Value: value}, nil
}
