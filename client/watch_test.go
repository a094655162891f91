package client_test

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/client"
	"github.com/holdfast-dev/holdfast/client/clienttest"
	"github.com/holdfast-dev/holdfast/rpc"
)

// breaking breaks each watch after some events, which are the numbers up to a last.
type breaking struct {
	holdfast.SandboxService
	last, each int
	err        error
	calls      []string
}

func (b *breaking) WatchSandboxes(_ context.Context, _ holdfast.Caller, in holdfast.WatchSandboxes, yield func(holdfast.SandboxEvent) error) error {
	b.calls = append(b.calls, in.After)
	at, _ := strconv.Atoi(in.After)
	for range b.each {
		if at++; at > b.last {
			break
		}
		if err := yield(holdfast.SandboxEvent{Version: strconv.Itoa(at), Sandbox: &holdfast.Sandbox{}}); err != nil {
			return err
		}
	}
	return b.err
}

// contract: A5
func TestA5_AWatchGoesOnThroughBrokenConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := holdfast.E(holdfast.Unavailable, holdfast.ReasonSlow, "come again")
		for _, broke := range []error{unavailable(), slow, nil} {
			service := &breaking{last: 50, each: 2, err: broke}
			c := client.Over(rpc.Services{Sandboxes: service})
			var got []string
			enough := errors.New("enough")
			err := c.WatchSandboxes(t.Context(), holdfast.WatchSandboxes{}, func(e holdfast.SandboxEvent) error {
				if got = append(got, e.Version); e.Version == "50" {
					return enough
				}
				return nil
			})
			if !errors.Is(err, enough) || len(got) != 50 || !slices.Equal(service.calls[:3], []string{"", "2", "4"}) {
				t.Fatalf("%v: %d events by %v, %v", broke, len(got), service.calls, err)
			}
		}
	})
}

// forgetful no longer knows changes after any version but its own.
type forgetful struct {
	breaking
	refusals int
}

func (f *forgetful) WatchSandboxes(ctx context.Context, who holdfast.Caller, in holdfast.WatchSandboxes, yield func(holdfast.SandboxEvent) error) error {
	if in.After != "" && f.refusals > 0 {
		f.refusals--
		f.calls = append(f.calls, in.After)
		return holdfast.E(holdfast.OutOfRange, holdfast.ReasonBeginAnew, "deletions are purged")
	}
	return f.breaking.WatchSandboxes(ctx, who, in, yield)
}

// contract: A5: the watch lists again, and says so.
func TestA5_AWatchThatWasAwayTooLongBeginsAnewAndSaysSo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		service := &forgetful{breaking: breaking{last: 3, each: 5, err: unavailable()}, refusals: 1}
		var got []string
		enough := errors.New("enough")
		var notice error
		c := client.Over(rpc.Services{Sandboxes: service}, client.WithRetryNotice(func(r client.Retry) {
			if notice == nil {
				notice = r.Cause
			}
		}))
		err := c.WatchSandboxes(t.Context(), holdfast.WatchSandboxes{After: "2"}, func(e holdfast.SandboxEvent) error {
			if e.Anew {
				got = append(got, "anew"+e.Version)
				return nil
			}
			if got = append(got, e.Version); e.Version == "3" {
				return enough
			}
			return nil
		})
		if !errors.Is(err, enough) || !slices.Equal(got, []string{"anew", "1", "2", "3"}) || !slices.Equal(service.calls, []string{"2", ""}) {
			t.Fatalf("%q by %q, %v", got, service.calls, err)
		}
		if holdfast.ReasonOf(notice) != holdfast.ReasonBeginAnew {
			t.Errorf("the caller was told %v", notice)
		}
		service = &forgetful{refusals: 1}
		err = client.Over(rpc.Services{Sandboxes: service}).WatchSandboxes(t.Context(), holdfast.WatchSandboxes{After: "2"},
			func(holdfast.SandboxEvent) error { return enough })
		if !errors.Is(err, enough) || len(service.calls) != 1 {
			t.Fatalf("%v, %q", err, service.calls)
		}
	})
}

func TestAWatchOfAServerThatStaysAwayEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		service := &breaking{last: 3, each: 5, err: unavailable()}
		var told []client.Retry
		c := client.Over(rpc.Services{Sandboxes: service}, client.WithRetryNotice(func(r client.Retry) { told = append(told, r) }))
		last := ""
		err := c.WatchSandboxes(t.Context(), holdfast.WatchSandboxes{}, func(e holdfast.SandboxEvent) error { last = e.Version; return nil })
		if holdfast.CodeOf(err) != holdfast.Unavailable || last != "3" || len(service.calls) < 5 || len(told) < 5 {
			t.Fatalf("%v after %s, %d calls, %d notices", err, last, len(service.calls), len(told))
		}
		refused := &breaking{err: holdfast.E(holdfast.OutOfRange, holdfast.ReasonBadField, "ahead")}
		err = client.Over(rpc.Services{Sandboxes: refused}).WatchSandboxes(t.Context(), holdfast.WatchSandboxes{After: "9"}, nil)
		if holdfast.CodeOf(err) != holdfast.OutOfRange || len(refused.calls) != 1 {
			t.Fatalf("%v, %d calls", err, len(refused.calls))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		err = client.Over(rpc.Services{Sandboxes: &breaking{err: unavailable()}}).WatchSandboxes(ctx, holdfast.WatchSandboxes{}, nil)
		if code := holdfast.CodeOf(err); code != holdfast.DeadlineExceeded && code != holdfast.Unavailable {
			t.Fatal(err)
		}
	})
}

// contract: A9, A11
func TestA11_AnExtensionIsRepeatedUntilItIsKnown(t *testing.T) {
	fake := clienttest.New()
	id := fake.Add(holdfast.SandboxReady).ID
	fake.Before = script(unavailable(), holdfast.E(holdfast.DeadlineExceeded, holdfast.ReasonUnreachable, "late"))
	c := client.Over(fake.Services(), client.WithRandom(func() float64 { return 0 }))
	s, err := c.ExtendSandbox(t.Context(), holdfast.ExtendSandbox{ID: id, TTL: 2 * time.Hour})
	if err != nil || time.Until(s.ExpiresAt) < time.Hour || len(fake.Calls("ExtendSandbox")) != 3 {
		t.Fatalf("%s, %v, %d calls", s.ExpiresAt, err, len(fake.Calls("ExtendSandbox")))
	}
	if s, err = c.SetSandboxLifetime(t.Context(), holdfast.SetSandboxLifetime{ID: id, TTL: time.Minute}); err != nil || time.Until(s.ExpiresAt) > time.Minute {
		t.Fatalf("%s, %v", s.ExpiresAt, err)
	}
	fake.Before = script(holdfast.E(holdfast.FailedPrecondition, holdfast.ReasonExpired, "over"))
	_, err = c.ExtendSandbox(t.Context(), holdfast.ExtendSandbox{ID: id, TTL: time.Hour})
	if holdfast.ReasonOf(err) != holdfast.ReasonExpired {
		t.Fatal(err)
	}
	if _, err = c.ExtendSandbox(t.Context(), holdfast.ExtendSandbox{ID: id}); holdfast.CodeOf(err) != holdfast.InvalidArgument {
		t.Fatal(err)
	}
}
