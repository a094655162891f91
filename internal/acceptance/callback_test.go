package acceptance

import (
	"context"
	"log/slog"
	"net/http"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/client"
	"github.com/holdfast-dev/holdfast/internal/server"
	"github.com/holdfast-dev/holdfast/internal/testenv"
	"github.com/holdfast-dev/holdfast/transport"
)

// contract: B5, C2: the ready callback is dropped every time, and the create still
// succeeds at once, because the host asks the guest (proof of "costs nothing").
func TestB5_AReadyThatIsDroppedThreeTimesCostsNothing(t *testing.T) {
	testenv.RequireRoot(t)
	data := filepath.Join(t.TempDir(), "data")
	before := testenv.TakeCensus(t, data)
	var dropped atomic.Int64
	s, err := server.Start(t.Context(), server.Config{
		DataDir: data, Listen: "127.0.0.1:0", GuestBinary: filepath.Join(testenv.Binaries(t), "holdfast-guest"),
		Logger: slog.New(slog.DiscardHandler),
		Faults: func(r *http.Request) transport.Fault {
			if strings.HasSuffix(r.URL.Path, "/deliveries/instances") {
				dropped.Add(1)
				return transport.Fault{Kind: transport.Drop}
			}
			return transport.Fault{}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer testenv.WantNothingLeft(t, before, data)
	defer func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := s.Shutdown(ctx); err != nil {
			t.Error(err)
		}
	}()
	key, _ := s.AdminKey()
	c, err := client.New(s.URL(), client.WithAPIKey(key))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.CreateSandbox(t.Context(), holdfast.CreateSandbox{RequestID: "warm", Environment: "base"}); err != nil {
		t.Fatal(err) // the image is made in this one
	}
	began := time.Now()
	sb, err := c.CreateSandbox(t.Context(), holdfast.CreateSandbox{RequestID: "r1", Environment: "base"})
	took := time.Since(began)
	if err != nil || sb.State != holdfast.SandboxReady {
		t.Fatalf("%s %v", sb.State, err)
	}
	if took > 3*time.Second {
		t.Errorf("READY after %s", took)
	}
	// All three attempts, 1 s and 5 s apart, are made and dropped.
	if !testenv.Eventually(20*time.Second, func() bool { return dropped.Load() >= 6 }) {
		t.Errorf("%d callbacks of two boots were dropped, want 6", dropped.Load())
	}
	page, err := c.ListSandboxes(t.Context(), listAll())
	if err != nil {
		t.Fatal(err)
	}
	for _, sb := range page.Sandboxes {
		if sb.State != holdfast.SandboxReady {
			t.Errorf("%s is %s", sb.ID, sb.State)
		}
		if _, err := c.DeleteSandbox(t.Context(), holdfast.MutateSandbox{ID: sb.ID}); err != nil {
			t.Error(err)
		}
	}
}
