package client

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"

	"github.com/holdfast-dev/holdfast"
)

// Upload writes content to a file, in one attempt, and holds the answer's
// SHA-256 against what was read. A replace that failed left the old file; it can
// be repeated (contract: A14).
func (c *Client) Upload(ctx context.Context, sandbox holdfast.SandboxID, in holdfast.WriteFile, content io.Reader) (holdfast.FileWritten, error) {
	if err := in.Validate(); err != nil {
		return holdfast.FileWritten{}, err
	}
	sum := sha256.New()
	written, err := c.services.Files.WriteFile(ctx, c.caller, sandbox, in, io.TeeReader(content, sum))
	if err != nil {
		return written, err
	}
	if sent := hex.EncodeToString(sum.Sum(nil)); written.SHA256 != sent {
		return written, fmt.Errorf("%s was written with SHA-256 %s, but %s was sent: write it again", in.Path, written.SHA256, sent)
	}
	return written, nil
}

// Download copies a file, or a part of it, to a writer. It fails unless all of
// it came, as its sender hashed it.
func (c *Client) Download(ctx context.Context, sandbox holdfast.SandboxID, in holdfast.ReadFile, to io.Writer) (holdfast.FileInfo, error) {
	info, content, err := c.ReadFile(ctx, sandbox, in)
	if err != nil {
		return info, err
	}
	_, err = io.Copy(to, content)
	return info, errors.Join(err, content.Close())
}

// ReadFile opens a file. The reader fails, instead of ending, unless all of the
// file came, as its sender hashed it. It must be closed.
func (c *Client) ReadFile(ctx context.Context, sandbox holdfast.SandboxID, in holdfast.ReadFile) (holdfast.FileInfo, io.ReadCloser, error) {
	if err := in.Validate(); err != nil {
		return holdfast.FileInfo{}, nil, err
	}
	return c.services.Files.ReadFile(ctx, c.caller, sandbox, in)
}

// StatFile describes a path; a symbolic link itself.
func (c *Client) StatFile(ctx context.Context, sandbox holdfast.SandboxID, path string) (holdfast.FileInfo, error) {
	return onPath(ctx, c, path, func(ctx context.Context) (holdfast.FileInfo, error) {
		return c.services.Files.StatFile(ctx, c.caller, sandbox, path)
	})
}

// ListDirectory lists a directory by name.
func (c *Client) ListDirectory(ctx context.Context, sandbox holdfast.SandboxID, path string) ([]holdfast.FileInfo, error) {
	return onPath(ctx, c, path, func(ctx context.Context) ([]holdfast.FileInfo, error) {
		return c.services.Files.ListDirectory(ctx, c.caller, sandbox, path)
	})
}

// MakeDirectory makes a directory and its missing parents.
func (c *Client) MakeDirectory(ctx context.Context, sandbox holdfast.SandboxID, path string, mode uint32) (holdfast.FileInfo, error) {
	return onPath(ctx, c, path, func(ctx context.Context) (holdfast.FileInfo, error) {
		return c.services.Files.MakeDirectory(ctx, c.caller, sandbox, path, mode)
	})
}

// MoveFile renames a path.
func (c *Client) MoveFile(ctx context.Context, sandbox holdfast.SandboxID, from, to string) (holdfast.FileInfo, error) {
	if err := holdfast.CheckPath("to", to); err != nil {
		return holdfast.FileInfo{}, err
	}
	return onPath(ctx, c, from, func(ctx context.Context) (holdfast.FileInfo, error) {
		return c.services.Files.MoveFile(ctx, c.caller, sandbox, from, to)
	})
}

// RemoveFile removes a path; a directory with what is in it only where recursive.
func (c *Client) RemoveFile(ctx context.Context, sandbox holdfast.SandboxID, path string, recursive bool) error {
	_, err := onPath(ctx, c, path, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, c.services.Files.RemoveFile(ctx, c.caller, sandbox, path, recursive)
	})
	return err
}

// WatchDirectory yields changes until ctx ends or the connection breaks.
func (c *Client) WatchDirectory(ctx context.Context, sandbox holdfast.SandboxID, in holdfast.WatchDirectory, yield func(holdfast.FileEvent) error) error {
	if err := in.Validate(); err != nil {
		return err
	}
	return c.services.Files.WatchDirectory(ctx, c.caller, sandbox, in, yield)
}

// onPath makes one call about a path.
func onPath[Out any](ctx context.Context, c *Client, path string, call func(context.Context) (Out, error)) (Out, error) {
	if err := holdfast.CheckPath("path", path); err != nil {
		var none Out
		return none, err
	}
	return attempt(ctx, c.settings.attempt, call)
}
