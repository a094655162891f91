package client_test

import (
	"context"
	"strings"
	"testing"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/client"
	"github.com/holdfast-dev/holdfast/client/clienttest"
)

func over(t *testing.T, fake *clienttest.Fake) *client.Client {
	t.Helper()
	c, err := client.New(fake.Serve(t), client.WithAPIKey(clienttest.APIKey), client.WithRandom(func() float64 { return 0 }))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// contract: A3, A9. Whatever answer of a fork is lost, its repeat is the same fork of
// the same checkpoint, which is deleted.
func TestA3_AForkWhoseAnswersAreLostIsMadeOnce(t *testing.T) {
	for _, lost := range []string{"CreateCheckpoint", "CreateSandbox", "DeleteCheckpoint"} {
		fake, gone := clienttest.New(), false
		fake.After = func(_ context.Context, call clienttest.Call) error {
			if call.Method != lost || gone {
				return nil
			}
			gone = true
			return holdfast.E(holdfast.Unavailable, holdfast.ReasonUnreachable, "the answer is lost")
		}
		source := fake.Add(holdfast.SandboxReady)
		c := over(t, fake)
		first, err := c.ForkSandbox(t.Context(), source.ID, holdfast.CreateSandbox{RequestID: "f", Name: "fork"})
		if err != nil || first.Source == "" || first.Name != "fork" {
			t.Fatalf("%s lost: %+v, %v", lost, first, err)
		}
		again, err := c.ForkSandbox(t.Context(), source.ID, holdfast.CreateSandbox{RequestID: "f", Name: "fork"})
		if err != nil || again.ID != first.ID {
			t.Errorf("%s lost: a repeat is %+v, %v", lost, again, err)
		}
		page, err := c.ListCheckpoints(t.Context(), holdfast.ListCheckpoints{States: []holdfast.CheckpointState{holdfast.CheckpointReady, holdfast.CheckpointDeleted}})
		if err != nil || len(page.Checkpoints) != 1 || page.Checkpoints[0].State != holdfast.CheckpointDeleted || page.Checkpoints[0].ID != first.Source {
			t.Errorf("%s lost: checkpoints %+v, %v", lost, page, err)
		}
	}
}

// contract: A10. A long request id still names its checkpoint alone.
func TestALongForksCheckpointHasARequestIDOfItsOwn(t *testing.T) {
	fake := clienttest.New()
	source := fake.Add(holdfast.SandboxReady)
	c := over(t, fake)
	long := strings.Repeat("x", holdfast.MaxRequestID-1)
	for _, id := range []string{long + "1", long + "2"} {
		if _, err := c.ForkSandbox(t.Context(), source.ID, holdfast.CreateSandbox{RequestID: id}); err != nil {
			t.Fatal(err)
		}
	}
	seen := map[string]bool{}
	for _, call := range fake.Calls("CreateCheckpoint") {
		seen[call.In.(holdfast.CreateCheckpoint).RequestID] = true
	}
	if len(seen) != 2 {
		t.Errorf("taken under %v", seen)
	}
	if _, err := c.ForkSandbox(t.Context(), source.ID, holdfast.CreateSandbox{RequestID: "a b"}); holdfast.CodeOf(err) != holdfast.InvalidArgument {
		t.Error(err)
	}
}
