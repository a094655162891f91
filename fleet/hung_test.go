package fleet

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-dev/holdfast"
)

// stuck is a host whose calls hang until it is let go, or answer.
type stuck struct {
	holdfast.HostService
	free  chan struct{}
	calls atomic.Int64
}

func (s *stuck) EnsureInstance(ctx context.Context, l holdfast.Level) (holdfast.Observation, error) {
	s.calls.Add(1)
	select {
	case <-s.free:
		return holdfast.Observation{Instance: l.Instance}, nil
	case <-ctx.Done():
		return holdfast.Observation{}, ctx.Err()
	}
}

func (s *stuck) ListInstances(context.Context) ([]holdfast.Observation, error) { return nil, nil }

// trap T30: of many orders for a host that hangs, a few wait; it gets one every 2 s,
// and all of them once it answers.
func TestT30_AHostThatHangsKeepsFewCallersWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &hung{long: 5 * time.Second}
		host := &stuck{free: make(chan struct{})}
		service := h.guard("http://h", host)
		order := func(patience time.Duration) (time.Duration, error) {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			began := time.Now()
			_, err := service.EnsureInstance(ctx, holdfast.Level{Wait: time.Second})
			return time.Since(began), err
		}
		for range 5 { // callers with little time of their own tell nothing about the host
			if took, err := order(2 * time.Second); took != 2*time.Second || !errors.Is(err, context.DeadlineExceeded) {
				t.Fatalf("%s, %v", took, err)
			}
		}
		for range hungAfter {
			if took, _ := order(11 * time.Second); took != 11*time.Second {
				t.Fatalf("it waited %s", took)
			}
		}
		host.calls.Store(0)
		began := time.Now()
		var orders sync.WaitGroup
		var waited atomic.Int64
		for range 100 { // ten a second, for ten seconds
			orders.Go(func() {
				took, err := order(11 * time.Second)
				if took > 0 {
					waited.Add(1)
					return
				}
				if holdfast.ReasonOf(err) != holdfast.ReasonUnreachable || answers(err) {
					t.Errorf("a refusal is taken for the host's answer: %v", err)
				}
			})
			time.Sleep(100 * time.Millisecond) // virtual
		}
		if took := time.Since(began); took > 11*time.Second {
			t.Errorf("the orders took %s", took)
		}
		orders.Wait()
		if n := waited.Load(); n < 5 || n > 6 || host.calls.Load() != n {
			t.Errorf("%d of 100 waited, %d calls", n, host.calls.Load())
		}
		close(host.free)
		time.Sleep(hungTry)
		for range 10 {
			if took, err := order(11 * time.Second); took != 0 || err != nil {
				t.Fatalf("it answers again: %s, %v", took, err)
			}
		}
		host.free = make(chan struct{})
		for range hungAfter {
			if _, err := order(11 * time.Second); err == nil {
				t.Fatal(err)
			}
		}
		if _, err := service.ListInstances(t.Context()); err != nil {
			t.Fatal(err)
		}
		if took, _ := order(11 * time.Second); took != 11*time.Second {
			t.Error("its list was answered, and it still counts as hanging")
		}
	})
}
