package step

import (
	"context"
	"io"

	"github.com/holdfast-dev/holdfast/blob"
)

// Blobs is a party's blob store: what it puts and deletes is a step. What it reads
// changes nothing.
type Blobs struct {
	blob.Store
	Party string
	Hook  Hook
}

var _ blob.Store = (*Blobs)(nil)

// Put implements blob.Store.
func (b *Blobs) Put(ctx context.Context, key string, r io.Reader) (info blob.Info, err error) {
	err = around(ctx, b.Hook, b.step(ctx, "put ", key), func() (err error) {
		info, err = b.Store.Put(ctx, key, r)
		return err
	})
	return info, err
}

// Delete implements blob.Store.
func (b *Blobs) Delete(ctx context.Context, key string) error {
	return around(ctx, b.Hook, b.step(ctx, "delete ", key), func() error { return b.Store.Delete(ctx, key) })
}

func (b *Blobs) step(ctx context.Context, what, key string) *Step {
	name, _ := route(key)
	return &Step{Party: b.Party, Kind: Blob, Name: what + name, Key: key, Actor: actor(ctx)}
}
