package clienttest

import (
	"context"
	"maps"
	"slices"

	"github.com/holdfast-dev/holdfast"
)

// CreateKey makes another key at each call; its secret lets nobody in.
func (f *Fake) CreateKey(ctx context.Context, _ holdfast.Caller, in holdfast.CreateKey) (out holdfast.CreatedKey, err error) {
	if err := in.Validate(); err != nil {
		return out, err
	}
	err = f.do(ctx, Call{"CreateKey", in}, func() error {
		p, err := f.find(in.Project)
		if err != nil {
			return err
		}
		k := &holdfast.Key{ID: holdfast.KeyID(f.ids.New(holdfast.PrefixKey)), Project: p.ID, Name: in.Name, Role: in.Role, CreatedAt: f.now()}
		if k.Role == "" {
			k.Role = holdfast.RoleMember
		}
		f.keys[k.ID] = k
		out = holdfast.CreatedKey{Key: *k, Secret: "hf_secret"}
		return nil
	})
	return out, err
}

// ListKeys lists by id, filtered; the page token is the last id.
func (f *Fake) ListKeys(ctx context.Context, _ holdfast.Caller, in holdfast.ListKeys) (page holdfast.KeyPage, err error) {
	err = f.do(ctx, Call{"ListKeys", in}, func() error {
		for _, id := range slices.Sorted(maps.Keys(f.keys)) {
			k := f.keys[id]
			if string(id) <= in.PageToken || in.Project != "" && in.Project != string(k.Project) || !k.RevokedAt.IsZero() && !in.Revoked {
				continue
			}
			if in.PageSize > 0 && len(page.Keys) == in.PageSize {
				page.NextPageToken = string(page.Keys[in.PageSize-1].ID)
				break
			}
			page.Keys = append(page.Keys, *k)
		}
		return nil
	})
	return page, err
}

// RevokeKey marks a record.
func (f *Fake) RevokeKey(ctx context.Context, _ holdfast.Caller, id holdfast.KeyID) (out holdfast.Key, err error) {
	if err := holdfast.CheckID("id", holdfast.PrefixKey, string(id)); err != nil {
		return out, err
	}
	err = f.do(ctx, Call{"RevokeKey", id}, func() error {
		k, ok := f.keys[id]
		if !ok {
			return unknown("key", string(id))
		}
		if k.RevokedAt.IsZero() {
			k.RevokedAt = f.now()
		}
		out = *k
		return nil
	})
	return out, err
}
