package fleet

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-dev/holdfast"
)

// stuck is a host whose calls hang until it is let go, or answer.
type stuck struct {
	holdfast.HostService
	free  chan struct{}
	calls int
}

func (s *stuck) EnsureInstance(ctx context.Context, l holdfast.Level) (holdfast.Observation, error) {
	s.calls++
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
		host.calls = 0
		waited, began := 0, time.Now()
		for range 100 {
			took, err := order(11 * time.Second)
			if took > 0 {
				waited++
				continue
			}
			wantReason(t, err, holdfast.ReasonUnreachable)
			if answers(err) {
				t.Error("a refusal is taken for the host's answer")
			}
			time.Sleep(100 * time.Millisecond) // virtual
		}
		if most := int(time.Since(began)/hungTry) + 1; waited > most || host.calls != waited {
			t.Errorf("%d of 100 waited, %d calls in %s", waited, host.calls, time.Since(began))
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
