package simulation

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-dev/holdfast/blob"
)

// blobs is a blob.Store in memory, under the world's clock.
type blobs struct {
	mu      sync.Mutex
	objects map[string]object
}

type object struct {
	data    []byte
	written time.Time
}

var _ blob.Store = (*blobs)(nil)

func newBlobs() *blobs { return &blobs{objects: map[string]object{}} }

func (o object) info(key string) blob.Info {
	return blob.Info{Key: key, Size: int64(len(o.data)), Written: o.written}
}

// Put implements blob.Store.
func (b *blobs) Put(ctx context.Context, key string, r io.Reader) (blob.Info, error) {
	if err := blob.CheckKey(key); err != nil {
		return blob.Info{}, err
	}
	data, err := io.ReadAll(r)
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		return blob.Info{}, fmt.Errorf("put %s: %w", key, err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	one := object{data: data, written: time.Now()}
	b.objects[key] = one
	info := one.info(key)
	info.SHA256 = sumOf(data)
	return info, nil
}

func sumOf(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

func (b *blobs) find(key string) (object, error) {
	if err := blob.CheckKey(key); err != nil {
		return object{}, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	one, known := b.objects[key]
	if !known {
		return object{}, fmt.Errorf("%s: %w", key, blob.ErrNotFound)
	}
	return one, nil
}

// Get implements blob.Store.
func (b *blobs) Get(_ context.Context, key string) (io.ReadCloser, blob.Info, error) {
	one, err := b.find(key)
	if err != nil {
		return nil, blob.Info{}, err
	}
	return io.NopCloser(bytes.NewReader(one.data)), one.info(key), nil
}

// Stat implements blob.Store.
func (b *blobs) Stat(_ context.Context, key string) (blob.Info, error) {
	one, err := b.find(key)
	if err != nil {
		return blob.Info{}, err
	}
	return one.info(key), nil
}

// List implements blob.Store.
func (b *blobs) List(_ context.Context, prefix, after string, limit int) (infos []blob.Info, next string, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for key, one := range b.objects {
		if strings.HasPrefix(key, prefix) && key > after {
			infos = append(infos, one.info(key))
		}
	}
	slices.SortFunc(infos, func(a, b blob.Info) int { return strings.Compare(a.Key, b.Key) })
	if limit > 0 && len(infos) > limit {
		infos = infos[:limit]
		next = infos[limit-1].Key
	}
	return infos, next, nil
}

// Delete implements blob.Store.
func (b *blobs) Delete(_ context.Context, key string) error {
	if err := blob.CheckKey(key); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.objects, key)
	return nil
}
