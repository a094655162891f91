package client

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	"github.com/holdfast-dev/holdfast"
)

// CreateCheckpoint takes a checkpoint of a sandbox or session, or carries the create of
// its request id on, until it is READY or was refused. Without a request id it mints
// one. The checkpoint is as it is now: a repeat may find it failed or deleted.
func (c *Client) CreateCheckpoint(ctx context.Context, in holdfast.CreateCheckpoint) (holdfast.Checkpoint, error) {
	const method = "CreateCheckpoint"
	minted := in.RequestID == ""
	if minted {
		in.RequestID = NewRequestID()
	}
	if err := in.Validate(); err != nil {
		return holdfast.Checkpoint{}, err
	}
	if minted {
		c.settings.requestID(method, in.RequestID)
	}
	return c.takeCheckpoint(ctx, in)
}

func (c *Client) takeCheckpoint(ctx context.Context, in holdfast.CreateCheckpoint) (holdfast.Checkpoint, error) {
	request := IncompleteError{Method: "CreateCheckpoint", RequestID: in.RequestID, Request: in}
	return attempts(ctx, c, holdfast.OperationCheckpoint, request, func(ctx context.Context) (holdfast.Checkpoint, error) {
		return c.services.Checkpoints.CreateCheckpoint(ctx, c.caller, in)
	})
}

// GetCheckpoint reads a checkpoint, or the tombstone of a deleted one. It only
// observes (contract: A5).
func (c *Client) GetCheckpoint(ctx context.Context, id holdfast.CheckpointID) (holdfast.Checkpoint, error) {
	return attempt(ctx, c.settings.attempt, func(ctx context.Context) (holdfast.Checkpoint, error) {
		return c.services.Checkpoints.GetCheckpoint(ctx, c.caller, id)
	})
}

// ListCheckpoints reads one page, the newest first.
func (c *Client) ListCheckpoints(ctx context.Context, in holdfast.ListCheckpoints) (holdfast.CheckpointPage, error) {
	return attempt(ctx, c.settings.attempt, func(ctx context.Context) (holdfast.CheckpointPage, error) {
		return c.services.Checkpoints.ListCheckpoints(ctx, c.caller, in)
	})
}

// DeleteCheckpoint deletes a checkpoint. One that is not there is as wanted: it is
// returned as DELETED, with nothing but its id (contract: A4, A8).
func (c *Client) DeleteCheckpoint(ctx context.Context, in holdfast.MutateCheckpoint) (holdfast.Checkpoint, error) {
	if err := in.Validate(); err != nil {
		return holdfast.Checkpoint{}, err
	}
	request := IncompleteError{Method: "DeleteCheckpoint", Request: in}
	out, err := attempts(ctx, c, holdfast.OperationDelete, request, func(ctx context.Context) (holdfast.Checkpoint, error) {
		return c.services.Checkpoints.DeleteCheckpoint(ctx, c.caller, in)
	})
	if holdfast.CodeOf(err) == holdfast.NotFound {
		return holdfast.Checkpoint{ID: in.ID, State: holdfast.CheckpointDeleted}, nil
	}
	return out, err
}

// ForkSandbox takes a checkpoint of a sandbox, creates a sandbox from it as in says
// (its Source and Environment are left out), and deletes the checkpoint, of which the
// fork keeps what it needs; one attempt is made at that, and what is left is listed. The
// fork's request id names all of it: a repeat is the same fork, and takes no second
// checkpoint (contract: A3).
func (c *Client) ForkSandbox(ctx context.Context, source holdfast.SandboxID, in holdfast.CreateSandbox) (holdfast.Sandbox, error) {
	return fork(ctx, c, forking{"ForkSandbox", string(source), in.RequestID}, func(ctx context.Context, requestID string, from holdfast.CheckpointID) (holdfast.Sandbox, error) {
		in.RequestID, in.Source, in.Environment = requestID, from, ""
		return c.CreateSandbox(ctx, in)
	})
}

// forking is a fork that is asked for: of what, and under which request id.
type forking struct{ method, source, requestID string }

// fork takes the checkpoint, creates what begins with it, and deletes the checkpoint.
func fork[Out any](ctx context.Context, c *Client, of forking, create func(ctx context.Context, requestID string, from holdfast.CheckpointID) (Out, error)) (out Out, err error) {
	minted := of.requestID == ""
	if minted {
		of.requestID = NewRequestID()
	}
	take := holdfast.CreateCheckpoint{RequestID: forkRequestID(of.requestID), Source: of.source}
	if err := take.Validate(); err != nil {
		return out, err
	}
	if err := holdfast.CheckRequestID("request_id", of.requestID); err != nil {
		return out, err
	}
	if minted {
		c.settings.requestID(of.method, of.requestID)
	}
	ctx, cancel := context.WithTimeout(ctx, c.settings.overall)
	defer cancel()
	taken, err := c.takeCheckpoint(ctx, take)
	if err != nil {
		return out, err
	}
	if taken.State == holdfast.CheckpointFailed {
		return out, checkpointFailed(taken)
	}
	out, err = create(ctx, of.requestID, taken.ID) // of a DELETED checkpoint too: that is a repeat, whose key is known
	if err != nil {
		return out, err
	}
	_, err = attempt(ctx, c.settings.attempt, func(ctx context.Context) (holdfast.Checkpoint, error) {
		return c.services.Checkpoints.DeleteCheckpoint(ctx, c.caller, holdfast.MutateCheckpoint{ID: taken.ID})
	})
	if err != nil && holdfast.CodeOf(err) != holdfast.NotFound {
		c.settings.retry(Retry{Method: "DeleteCheckpoint", Attempt: 1, Cause: err}) // what is recorded is carried on there
	}
	return out, nil
}

func checkpointFailed(c holdfast.Checkpoint) error {
	why := holdfast.Failure{Reason: holdfast.ReasonCheckpointFailed, Message: "no reason is recorded"}
	if c.Failure != nil {
		why = *c.Failure
	}
	return holdfast.E(holdfast.FailedPrecondition, why.Reason, "%s, which the fork begins with, failed: %s; use another request id", c.ID, why.Message).
		On(string(c.ID))
}

// forkRequestID is the request id of the checkpoint that a fork begins with.
func forkRequestID(fork string) string {
	id := fork + ".checkpoint"
	if len(id) <= holdfast.MaxRequestID {
		return id
	}
	sum := sha256.Sum256([]byte(fork))
	return fmt.Sprintf("fork-%s.checkpoint", hex.EncodeToString(sum[:16]))
}
