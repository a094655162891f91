package orchestrator

import (
	"context"
	"testing"
)

// A caller who leaves in the instant in which the bell rings has left: what was to be
// carried on without it is, whatever select takes of the two. contract: A2
func TestAWaitWhoseCallerHasLeftIsOverThoughItWasRung(t *testing.T) {
	ctx, leave := context.WithCancel(t.Context())
	leave()
	for range 64 {
		b := newBell()
		rung := b.on("it")
		b.ring("it")
		if b.await(ctx, rung, nil) {
			t.Fatal("it is told to look again, with a context that has ended")
		}
	}
}
