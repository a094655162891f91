// Package blob keeps large, immutable objects apart from databases and hosts:
// in a directory, or in a bucket that speaks S3's protocol. What is under a key
// is all of one Put, or nothing; it is durable once Put returns.
package blob

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/url"
	"strings"
	"time"
)

// ErrNotFound says that nothing is under a key.
var ErrNotFound = errors.New("blob: nothing under this key")

// ErrMismatch says that what was read is not what was put.
var ErrMismatch = errors.New("blob: not what was put")

// MaxKey bounds a key, in bytes.
const MaxKey = 512

// Info describes one object.
type Info struct {
	Key     string
	Size    int64     // bytes
	SHA256  string    // in hex; of what this Put wrote, "" from Stat and List
	Written time.Time // by the store's clock
}

// Store keeps objects. Its methods are safe for concurrent use, also by several
// processes. A key is one or more parts of a-z, A-Z, 0-9, '-', '_' and '.', with
// '/' between them; no part begins with a dot.
type Store interface {
	// Put writes what r yields. When r fails, or ctx ends, nothing is under the key
	// that was not before. A second Put of a key replaces the first; a reader of the
	// first reads that to its end, or gets an error.
	Put(ctx context.Context, key string, r io.Reader) (Info, error)
	// Get reads from the beginning. ErrNotFound where nothing is.
	Get(ctx context.Context, key string) (io.ReadCloser, Info, error)
	Stat(ctx context.Context, key string) (Info, error)
	// List yields at most limit objects whose keys begin with prefix and come after
	// the key after, in the order of their keys' bytes; next is "" after the last.
	List(ctx context.Context, prefix, after string, limit int) (infos []Info, next string, err error)
	// Delete removes an object; nothing there is success.
	Delete(ctx context.Context, key string) error
}

// Open returns the store at a place: the path of a directory, which is made, or
// s3://BUCKET[/PREFIX][?endpoint=URL][&region=REGION], whose credentials are
// AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN, or the role of
// the machine. The bucket must exist; where its server does not answer, that is left
// to the first use.
func Open(ctx context.Context, place string) (Store, error) {
	if !strings.Contains(place, "://") {
		return openDirectory(place)
	}
	u, err := url.Parse(place)
	if err != nil {
		return nil, fmt.Errorf("blob store: %w", err)
	}
	switch u.Scheme {
	case "file":
		return openDirectory(u.Path)
	case "s3":
		return openS3(ctx, u)
	}
	return nil, fmt.Errorf("blob store %s://…: there is none of that kind: give a directory, or s3://BUCKET", u.Scheme)
}

// CheckKey reports what is wrong with a key; nil if nothing is.
func CheckKey(key string) error {
	if key == "" || len(key) > MaxKey {
		return fmt.Errorf("blob key of %d bytes: 1 to %d are allowed", len(key), MaxKey)
	}
	for part := range strings.SplitSeq(key, "/") {
		if part == "" || part[0] == '.' || strings.Trim(part, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.") != "" {
			return fmt.Errorf("blob key %q: parts of letters, digits, '-', '_' and '.', none beginning with a dot, with '/' between them", key)
		}
	}
	return nil
}

// Verify passes r on, and fails at its end with ErrMismatch where it is not of
// that size and SHA-256 (hex): what is unpacked meanwhile must not be used then.
func Verify(r io.Reader, size int64, sum string) io.Reader {
	return &verifier{r: r, left: size, hash: sha256.New(), sum: sum}
}

type verifier struct {
	r    io.Reader
	left int64
	hash hash.Hash
	sum  string
}

func (v *verifier) Read(p []byte) (int, error) {
	n, err := v.r.Read(p)
	v.left -= int64(n)
	v.hash.Write(p[:n])
	switch {
	case v.left < 0:
		return n, fmt.Errorf("%w: it is longer", ErrMismatch)
	case err == io.EOF && v.left > 0:
		return n, fmt.Errorf("%w: it is %d bytes short", ErrMismatch, v.left)
	case err == io.EOF && hex.EncodeToString(v.hash.Sum(nil)) != v.sum:
		return n, fmt.Errorf("%w: its SHA-256 is another", ErrMismatch)
	}
	return n, err
}

// measured counts and hashes what is read through it.
type measured struct {
	ctx  context.Context
	r    io.Reader
	size int64
	hash hash.Hash
}

func measure(ctx context.Context, r io.Reader) *measured {
	return &measured{ctx: ctx, r: r, hash: sha256.New()}
}

func (m *measured) Read(p []byte) (int, error) {
	if err := m.ctx.Err(); err != nil {
		return 0, err
	}
	n, err := m.r.Read(p)
	m.size += int64(n)
	m.hash.Write(p[:n])
	return n, err
}

func (m *measured) sum() string { return hex.EncodeToString(m.hash.Sum(nil)) }
