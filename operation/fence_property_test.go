package operation_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/holdfast-dev/holdfast/operation"
)

// model is what the row should be, told apart from how the package does it: who holds it, and nothing else.
type model struct {
	w       world
	id      string
	now     time.Time
	claims  []operation.Claim // every claim ever given out, live or stale
	current int               // index of the claim that the fence lets through, or -1
	number  int64             // highest claim number given out
	ended   bool
	enders  int // how many writes ended the operation
}

func (m *model) live() bool {
	return !m.ended && m.current >= 0 && m.claims[m.current].Expires.After(m.now)
}

func (m *model) take(t *rapid.T) {
	ttl := time.Duration(rapid.IntRange(1, 200).Draw(t, "ttl")) * time.Second
	c, err := m.w.tryTake(m.id, m.now, ttl)
	switch {
	case m.ended:
		mustBe(t, err, operation.ErrEnded)
	case m.live():
		mustBe(t, err, operation.ErrHeld)
	case err != nil:
		t.Fatalf("take: %v", err)
	default:
		if c.Number <= m.number {
			t.Fatalf("claim number %d after %d", c.Number, m.number)
		}
		if c.Expires.Sub(m.now) > operation.MaxClaim {
			t.Fatalf("a claim of %s", c.Expires.Sub(m.now))
		}
		m.claims, m.current, m.number = append(m.claims, c), len(m.claims), c.Number
	}
}

// write lets any claim ever given out try to write, and holds the answer against the model.
func (m *model) write(t *rapid.T) {
	if len(m.claims) == 0 {
		return
	}
	i := rapid.IntRange(0, len(m.claims)-1).Draw(t, "claim")
	kind := rapid.SampledFrom([]string{"check", "issue", "finish", "release"}).Draw(t, "write")
	c, before := m.claims[i], m.w.get(m.id)
	allowed := !m.ended && i == m.current && (kind == "finish" || kind == "release" || m.live())
	var err error
	m.w.must(func(tx operation.Tx) error { // committed whatever the answer: the fence alone has to hold
		switch kind {
		case "check":
			_, err = operation.Check(context.Background(), tx, m.now, c)
		case "issue":
			err = operation.Issue(context.Background(), tx, m.now, c)
		case "finish":
			err = operation.Finish(context.Background(), tx, m.now, c, done)
		case "release":
			err = operation.Release(context.Background(), tx, m.now, c, operation.Report{ClearIssued: true})
		}
		return nil
	})
	if !allowed {
		mustBe(t, err, operation.ErrFenced)
		if d := cmp.Diff(before, m.w.get(m.id)); d != "" {
			t.Fatalf("a stale %s changed the row: %s", kind, d)
		}
		return
	}
	if err != nil {
		t.Fatalf("%s by the current claim: %v", kind, err)
	}
	switch kind {
	case "finish":
		m.current, m.ended = -1, true
		m.enders++
	case "release":
		m.current = -1
	}
}

func (m *model) end(t *rapid.T) {
	err := update(m.w.db, func(tx operation.Tx) error {
		_, err := operation.End(context.Background(), tx, m.now, m.id, done)
		return err
	})
	if m.ended {
		mustBe(t, err, operation.ErrEnded)
		return
	}
	if err != nil {
		t.Fatalf("end: %v", err)
	}
	m.current, m.ended, m.number = -1, true, m.number+1
	m.enders++
}

func (m *model) supersede(t *rapid.T) {
	err := update(m.w.db, func(tx operation.Tx) error {
		return operation.Supersede(context.Background(), tx, m.now, m.id, "next")
	})
	switch {
	case m.ended:
		mustBe(t, err, operation.ErrEnded)
	case m.live():
		mustBe(t, err, operation.ErrHeld)
	case err != nil:
		t.Fatalf("supersede: %v", err)
	default:
		m.current, m.ended, m.number = -1, true, m.number+1
		m.enders++
	}
}

func (m *model) restart(*rapid.T) {
	m.w.must(func(tx operation.Tx) error {
		_, err := operation.ReleaseHolders(context.Background(), tx, m.now)
		return err
	})
	m.current = -1
}

func (m *model) check(t *rapid.T) {
	o := m.w.get(m.id)
	switch {
	case o.State.Ended() != m.ended:
		t.Fatalf("state %s, model ended %v", o.State, m.ended)
	case o.Claimed(m.now) != m.live():
		t.Fatalf("claimed %v, model %v: %+v", o.Claimed(m.now), m.live(), o)
	case o.Claim != m.number:
		t.Fatalf("claim number %d, model %d", o.Claim, m.number)
	case m.enders > 1:
		t.Fatalf("ended %d times", m.enders)
	}
}

func mustBe(t *rapid.T, err, target error) {
	if !errors.Is(err, target) {
		t.Fatalf("got %v, want an error that is %v", err, target)
	}
}

// traps T11, T13, T14, T15: whatever the order, at most one claim is live, and a stale one changes nothing.
func TestT11_T13_T15_RandomInterleavingsKeepTheFence(t *testing.T) {
	w := newWorld(t)
	n := 0
	rapid.Check(t, func(rt *rapid.T) {
		n++
		m := &model{w: w, id: fmt.Sprintf("op%d", n), now: epoch, current: -1}
		w.record(m.id, operation.Resource{Kind: "sandbox", ID: m.id}, "CREATE")
		rt.Repeat(map[string]func(*rapid.T){
			"":     m.check,
			"take": m.take,
			"tick": func(t *rapid.T) {
				m.now = m.now.Add(time.Duration(rapid.IntRange(1, 150).Draw(t, "seconds")) * time.Second)
			},
			"write":     m.write,
			"write2":    m.write,
			"end":       m.end,
			"supersede": m.supersede,
			"restart":   m.restart,
		})
	})
}

// contract: A6. Real goroutines on one file, whose claims run out under them: each operation is finished exactly once.
func TestA6_RacingHoldersFinishEachOperationOnce(t *testing.T) {
	w := newWorld(t)
	const operations, holders = 8, 6
	for i := range operations {
		w.record(fmt.Sprintf("op%d", i), numbered(i), "CREATE")
	}
	var clock, finished atomic.Int64
	var wg sync.WaitGroup
	for h := range holders {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(1, uint64(h)))
			for finished.Load() < operations {
				now := epoch.Add(time.Duration(clock.Add(1)) * time.Second)
				c, err := w.tryTake(fmt.Sprintf("op%d", rnd.IntN(operations)), now, 5*time.Second)
				if err != nil {
					if !errors.Is(err, operation.ErrHeld) && !errors.Is(err, operation.ErrEnded) {
						t.Error(err)
						return
					}
					continue
				}
				clock.Add(rnd.Int64N(10)) // half of them outlive their claim before they write
				at := epoch.Add(time.Duration(clock.Load()) * time.Second)
				if rnd.IntN(2) == 0 {
					err = w.release(c, at, operation.Report{})
				} else if err = w.finish(c, at, done); err == nil {
					finished.Add(1)
				}
				if err != nil && !errors.Is(err, operation.ErrFenced) {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	for i := range operations {
		if o := w.get(fmt.Sprintf("op%d", i)); o.State != operation.StateDone {
			t.Errorf("%+v", o)
		}
	}
	if finished.Load() != operations {
		t.Errorf("%d ends of %d operations", finished.Load(), operations)
	}
}
