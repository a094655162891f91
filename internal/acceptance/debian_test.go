package acceptance

import (
	"sync"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/client"
	"github.com/holdfast-dev/holdfast/internal/testenv"
)

// A Debian base is built at its first use, once for all who wait; meanwhile the
// operation says that it waits for the image, and holds no claim.
func TestADebianSandboxIsPreparedOnceAndHasItsTools(t *testing.T) {
	if testing.Short() {
		t.Skip("takes a minute and a Debian mirror: not with -short")
	}
	s := serve(t)
	c := s.dial(client.WithOverallTimeout(8 * time.Minute))
	created := make([]holdfast.Sandbox, 2)
	var wg sync.WaitGroup
	for i, id := range []string{"first", "second"} {
		wg.Go(func() {
			sb, err := c.CreateSandbox(t.Context(), holdfast.CreateSandbox{RequestID: id, Environment: "debian"})
			if err != nil {
				t.Errorf("create: %v\n%s", err, s.Log())
			}
			created[i] = sb
		})
	}
	var op *holdfast.Operation
	waits := testenv.Eventually(time.Minute, func() bool {
		page, err := s.client.ListSandboxes(t.Context(), listAll())
		if err != nil {
			return false
		}
		for _, sb := range page.Sandboxes {
			if op = sb.Operation; op != nil && op.WaitsFor == "image" && op.Claim == nil {
				return true
			}
		}
		return false
	})
	wg.Wait()
	if !waits {
		t.Errorf("no operation said that it waits for the image, without a claim; the last: %+v", op)
	}
	for _, sb := range created {
		s.keep(sb.ID)
		if sb.State != holdfast.SandboxReady {
			t.Fatalf("%s is %s", sb.ID, sb.State)
		}
	}
	for _, tool := range []string{"bash --version", "git --version", "python3 --version", "test -s /etc/ssl/certs/ca-certificates.crt"} {
		if out, errs, code := s.sh(created[0].ID, tool); code != 0 {
			t.Errorf("%s: exit %d %s %s", tool, code, out, errs)
		}
	}
}
