package rpc_test

import (
	"context"
	"crypto/rand"
	"errors"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/client/clienttest"
	"github.com/holdfast-dev/holdfast/rpc"
)

func TestA5_AWatchCrossesEveryProtocolAndEndsAtTheServerWithItsCaller(t *testing.T) {
	fake := clienttest.New()
	want := fake.Add(holdfast.SandboxReady)
	url := fake.Serve(t)
	for protocol, options := range protocols() {
		services := dial(t, url, options...)
		ctx, stop := context.WithCancel(t.Context())
		changed := false
		err := services.Sandboxes.WatchSandboxes(ctx, holdfast.Caller{}, holdfast.WatchSandboxes{}, func(e holdfast.SandboxEvent) error {
			switch {
			case e.Version == "" || e.Sandbox == nil || e.Sandbox.ID != want.ID:
				t.Errorf("%s: %+v", protocol, e)
			case !changed:
				changed = true
				fake.Change(want.ID, func(s *holdfast.Sandbox) { s.Name = protocol })
			case e.Sandbox.Name == protocol:
				stop()
			}
			return nil
		})
		stop()
		if holdfast.CodeOf(err) != holdfast.Cancelled {
			t.Errorf("%s: %v", protocol, err)
		}
	}
}

// endless yields events for as long as they are taken.
type endless struct {
	*clienttest.Fake
	ended chan error
}

func (e endless) WatchSandboxes(ctx context.Context, _ holdfast.Caller, _ holdfast.WatchSandboxes, yield func(holdfast.SandboxEvent) error) error {
	for {
		var name strings.Builder // of what does not compress
		for name.Len() < 64<<10 {
			name.WriteString(rand.Text())
		}
		s := holdfast.Sandbox{ID: "sb-1", Name: name.String()}
		if err := yield(holdfast.SandboxEvent{Version: "1", Sandbox: &s}); err != nil {
			e.ended <- err
			return err
		}
	}
}

// A watcher that takes nothing holds a stream's buffers and a page, and that not for ever.
func TestAWatcherThatTakesNothingIsBrokenOff(t *testing.T) {
	service := endless{clienttest.New(), make(chan error, 1)}
	handler := rpc.NewHandler(rpc.Services{Sandboxes: service}, rpc.Options{Anonymous: &holdfast.Caller{}, WatchPatience: 200 * time.Millisecond})
	server := httptest.NewUnstartedServer(handler)
	server.Config = rpc.NewServer(handler)
	server.Start()
	t.Cleanup(func() { server.CloseClientConnections(); server.Close() })
	stuck := errors.New("took no more")
	done := make(chan error, 1)
	go func() {
		done <- dial(t, server.URL).Sandboxes.WatchSandboxes(t.Context(), holdfast.Caller{}, holdfast.WatchSandboxes{}, func(holdfast.SandboxEvent) error {
			select {
			case err := <-service.ended:
				t.Logf("the server gave up: %v", err)
				return stuck
			case <-time.After(20 * time.Second):
				return nil
			}
		})
	}()
	if err := <-done; !errors.Is(err, stuck) {
		t.Fatalf("the server went on for a watcher that took nothing: %v", err)
	}
}
