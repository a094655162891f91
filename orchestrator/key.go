package orchestrator

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/store"
)

// keyPrefix begins every API key, so that a key in a log or a commit is known for
// one.
const keyPrefix = "hf_"

// newSecret makes an API key with 160 random bits.
func newSecret() string { return keyPrefix + strings.ToLower(rand.Text()+rand.Text()[:6]) }

// hashOf is how a key is stored. The secret is random, so that a fast hash is as
// good as a slow one.
func hashOf(secret string) string {
	sum := sha256.Sum256([]byte(secret))
	return hex.EncodeToString(sum[:])
}

const keyColumns = `id, project, name, role, created_at, revoked_at`

func scanKey(scan func(...any) error) (holdfast.Key, error) {
	var k holdfast.Key
	var created, revoked int64
	err := scan(&k.ID, &k.Project, &k.Name, &k.Role, &created, &revoked)
	k.CreatedAt, k.RevokedAt = store.FromMicros(created), store.FromMicros(revoked)
	return k, err
}

func noKey(id holdfast.KeyID) error {
	return holdfast.E(holdfast.NotFound, holdfast.ReasonUnknown, "no API key %s", id).On(string(id))
}

// CreateKey makes a key. Whoever loses the answer makes another, and revokes the
// one that nobody has.
func (s *Service) CreateKey(ctx context.Context, caller holdfast.Caller, in holdfast.CreateKey) (holdfast.CreatedKey, error) {
	if err := caller.RequireAdmin("making a key"); err != nil {
		return holdfast.CreatedKey{}, err
	}
	if err := in.Validate(); err != nil {
		return holdfast.CreatedKey{}, err
	}
	k := holdfast.Key{ID: holdfast.KeyID(s.config.IDs.New(holdfast.PrefixKey)), Name: in.Name, Role: in.Role}
	if k.Role == "" {
		k.Role = holdfast.RoleMember
	}
	secret := newSecret()
	err := s.update(ctx, "create key", func(tx store.Tx, now time.Time) error {
		p, err := oneProject(ctx, tx, in.Project)
		if err != nil {
			return err
		}
		k.Project, k.CreatedAt = p.ID, now
		// The secret is new for each call, so a conflict is this call's own commit of
		// unknown outcome.
		_, err = tx.ExecContext(ctx, `INSERT INTO api_key (id, project, name, role, hash, created_at) VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT DO NOTHING`,
			string(k.ID), string(k.Project), k.Name, string(k.Role), hashOf(secret), store.Micros(now))
		if err != nil {
			return fmt.Errorf("insert key: %w", err)
		}
		return nil
	})
	if err != nil {
		return holdfast.CreatedKey{}, err
	}
	return holdfast.CreatedKey{Key: k, Secret: secret}, nil
}

// ListKeys pages by id.
func (s *Service) ListKeys(ctx context.Context, caller holdfast.Caller, in holdfast.ListKeys) (holdfast.KeyPage, error) {
	if err := caller.RequireAdmin("listing keys"); err != nil {
		return holdfast.KeyPage{}, err
	}
	if err := in.Validate(); err != nil {
		return holdfast.KeyPage{}, err
	}
	size := in.PageSize
	if size == 0 {
		size = holdfast.DefaultPageSize
	}
	var page holdfast.KeyPage
	err := s.view(ctx, "list keys", func(tx store.Tx, _ time.Time) error {
		page = holdfast.KeyPage{}
		where, args := `WHERE id > $1`, []any{in.PageToken}
		if in.Project != "" {
			p, err := oneProject(ctx, tx, in.Project)
			if err != nil {
				return err
			}
			where, args = where+` AND project = $2`, append(args, string(p.ID))
		}
		if !in.Revoked {
			where += ` AND revoked_at = 0`
		}
		list, err := gather(ctx, tx, scanKey, `SELECT `+keyColumns+` FROM api_key `+where+fmt.Sprintf(` ORDER BY id LIMIT %d`, size+1), args...)
		if len(list) > size {
			list = list[:size]
			page.NextPageToken = string(list[size-1].ID)
		}
		page.Keys = list
		return err
	})
	return page, err
}

// RevokeKey makes a key worthless, at once here and within holdfast.KeyCache at
// the other replicas. It is idempotent.
func (s *Service) RevokeKey(ctx context.Context, caller holdfast.Caller, id holdfast.KeyID) (holdfast.Key, error) {
	if err := caller.RequireAdmin("revoking a key"); err != nil {
		return holdfast.Key{}, err
	}
	if err := holdfast.CheckID("id", holdfast.PrefixKey, string(id)); err != nil {
		return holdfast.Key{}, err
	}
	var k holdfast.Key
	err := s.update(ctx, "revoke key", func(tx store.Tx, now time.Time) error {
		_, err := tx.ExecContext(ctx, `UPDATE api_key SET revoked_at = $2 WHERE id = $1 AND revoked_at = 0`, string(id), store.Micros(now))
		if err != nil {
			return fmt.Errorf("revoke key %s: %w", id, err)
		}
		k, err = scanKey(tx.QueryRowContext(ctx, `SELECT `+keyColumns+` FROM api_key WHERE id = $1`, string(id)).Scan)
		if errors.Is(err, sql.ErrNoRows) {
			return noKey(id)
		}
		return err
	})
	if err != nil {
		return holdfast.Key{}, err
	}
	s.keys.forget()
	return k, nil
}

// Authenticate finds who a secret stands for; NOT_FOUND is that it stands for
// nobody. An answer may be as old as holdfast.KeyCache.
func (s *Service) Authenticate(ctx context.Context, secret string) (holdfast.Caller, error) {
	unknown := holdfast.E(holdfast.NotFound, holdfast.ReasonUnknown, "no such API key")
	if !strings.HasPrefix(secret, keyPrefix) || len(secret) > maxSecret {
		return holdfast.Caller{}, unknown // of no key; the database need not be asked
	}
	hash := hashOf(secret)
	asked := s.config.Clock()
	caller, found, epoch := s.keys.get(hash, asked)
	if found {
		return caller, nil
	}
	err := s.view(ctx, "authenticate", func(tx store.Tx, _ time.Time) error {
		k, err := scanKey(tx.QueryRowContext(ctx, `SELECT `+keyColumns+` FROM api_key WHERE hash = $1`, hash).Scan)
		if errors.Is(err, sql.ErrNoRows) || err == nil && !k.RevokedAt.IsZero() {
			return unknown
		}
		caller = holdfast.Caller{Project: k.Project, Name: k.Name, Role: k.Role, Key: k.ID}
		return err
	})
	if err != nil {
		return holdfast.Caller{}, err
	}
	s.keys.put(hash, caller, asked, epoch)
	return caller, nil
}

// The bounds of the cache of keys.
const (
	maxKeys   = 1024
	maxSecret = 256 // bytes
)

// keyCache remembers for a short time who keys stand for. What is not a key is
// not remembered, so that guesses drive nothing out.
type keyCache struct {
	mu    sync.Mutex
	known map[string]knownKey
	epoch int64 // raised by each revocation
}

type knownKey struct {
	caller holdfast.Caller
	until  time.Time
}

func newKeyCache() *keyCache { return &keyCache{known: map[string]knownKey{}} }

// get also returns the epoch that an answer asked for from now on belongs to.
func (c *keyCache) get(hash string, now time.Time) (holdfast.Caller, bool, int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	k, ok := c.known[hash]
	return k.caller, ok && now.Before(k.until), c.epoch
}

// put remembers an answer that was asked for at that time, unless a key was
// revoked since: it may have been this one.
func (c *keyCache) put(hash string, caller holdfast.Caller, asked time.Time, epoch int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if epoch != c.epoch {
		return
	}
	if len(c.known) >= maxKeys {
		clear(c.known)
	}
	c.known[hash] = knownKey{caller, asked.Add(holdfast.KeyCache)}
}

// forget drops everything: revocations are rare.
func (c *keyCache) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.epoch++
	clear(c.known)
}
