package orchestrator

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/hook"
	"github.com/holdfast-dev/holdfast/store"
)

const hookColumns = `name, project, kind, rules, creator, created_at`

func scanHook(scan func(...any) error) (holdfast.Hook, error) {
	var h holdfast.Hook
	var created int64
	err := scan(&h.Name, &h.Project, &h.Kind, &h.Rules, &h.Creator, &created)
	h.CreatedAt = store.FromMicros(created)
	return h, err
}

func noHook(name string) error {
	return holdfast.E(holdfast.NotFound, holdfast.ReasonUnknown, "no hook %s", name).On(name)
}

// CreateHook makes a source of webhooks, or returns the one that the name and the
// same input already made (contract: A3).
func (s *Service) CreateHook(ctx context.Context, caller holdfast.Caller, in holdfast.CreateHook) (holdfast.CreatedHook, error) {
	if err := caller.RequireAdmin("making a hook"); err != nil {
		return holdfast.CreatedHook{}, err
	}
	if err := in.Validate(); err != nil {
		return holdfast.CreatedHook{}, err
	}
	if _, err := hook.Parse(in.Rules); err != nil {
		return holdfast.CreatedHook{}, err
	}
	sent, err := s.hookFingerprint(in)
	if err != nil {
		return holdfast.CreatedHook{}, err
	}
	secret := in.Secret
	if secret == "" {
		raw := make([]byte, 32)
		rand.Read(raw) //nolint:errcheck // it never fails
		secret = secretPrefix + base64Of(raw)
	}
	sealed, err := s.seal(in.Name, secret)
	if err != nil {
		return holdfast.CreatedHook{}, err
	}
	var out holdfast.CreatedHook
	err = s.update(ctx, "create hook", func(tx store.Tx, now time.Time) error {
		out = holdfast.CreatedHook{}
		reference := in.Project
		if reference == "" {
			reference = string(holdfast.ProjectDefault)
		}
		p, err := oneProject(ctx, tx, reference)
		if err != nil {
			return err
		}
		n, err := affected(tx.ExecContext(ctx, `INSERT INTO hook (name, project, kind, secret, fingerprint, rules, creator, created_at)
			VALUES ($1, $2, $3, $4, $5, $6, $7, $8) ON CONFLICT DO NOTHING`,
			in.Name, string(p.ID), string(in.Kind), sealed, sent, in.Rules, caller.Name, store.Micros(now)))
		if err != nil {
			return fmt.Errorf("insert hook %s: %w", in.Name, err)
		}
		if out.Hook, err = sameHook(ctx, tx, in, sent); err != nil {
			return err
		}
		if n == 1 {
			out.Secret = secret
		}
		return nil
	})
	return out, err
}

// hookFingerprint is what a create sent, field by field; the secret as a hash that
// only this cluster can make.
func (s *Service) hookFingerprint(in holdfast.CreateHook) (string, error) {
	key := derived(s.config.ClusterKey, "holdfast hook fingerprint v1", in.Name)
	fields := map[string]string{}
	for name, value := range map[string]string{"project": in.Project, "kind": string(in.Kind), "secret": in.Secret, "rules": in.Rules} {
		if value != "" {
			fields[name] = hex.EncodeToString(derived(key, name, value)[:12])
		}
	}
	raw, err := json.Marshal(fingerprint{Version: 1, Fields: fields})
	if err != nil {
		return "", fmt.Errorf("fingerprint of hook %s: %w", in.Name, err)
	}
	return string(raw), nil
}

// sameHook reads the hook of the name, and refuses one that other input made. It is a
// statement after the insert, which may have waited for another's (trap T8).
func sameHook(ctx context.Context, tx store.Tx, in holdfast.CreateHook, sent string) (holdfast.Hook, error) {
	var raw string
	h, err := scanHook(func(into ...any) error {
		return tx.QueryRowContext(ctx, `SELECT `+hookColumns+`, fingerprint FROM hook WHERE name = $1`, in.Name).Scan(append(into, &raw)...)
	})
	if err != nil {
		return h, fmt.Errorf("read hook %s: %w", in.Name, err)
	}
	var was, is fingerprint
	if err := errors.Join(json.Unmarshal([]byte(raw), &was), json.Unmarshal([]byte(sent), &is)); err != nil {
		return h, fmt.Errorf("read hook %s: %w", in.Name, err)
	}
	if fields := was.differs(is); len(fields) > 0 {
		list := strings.Join(fields, ", ")
		return h, holdfast.E(holdfast.AlreadyExists, holdfast.ReasonNameTaken,
			"hook %s was created with other input, different in: %s; delete it first, and what came by then stays known", in.Name, list).
			On(in.Name).With("fields", list)
	}
	return h, nil
}

// seal encrypts a hook's secret, so that a copy of the database alone signs nothing.
func (s *Service) seal(name, secret string) (string, error) {
	box, err := s.sealer(name)
	if err != nil {
		return "", err
	}
	nonce := make([]byte, box.NonceSize())
	rand.Read(nonce) //nolint:errcheck // it never fails
	return base64Of(box.Seal(nonce, nonce, []byte(secret), []byte(name))), nil
}

func (s *Service) unseal(name, sealed string) (string, error) {
	box, err := s.sealer(name)
	if err != nil {
		return "", err
	}
	raw, err := fromBase64(sealed)
	if err != nil || len(raw) < box.NonceSize() {
		return "", fmt.Errorf("the secret of hook %s is damaged: %w", name, errors.Join(err))
	}
	secret, err := box.Open(nil, raw[:box.NonceSize()], raw[box.NonceSize():], []byte(name))
	if err != nil {
		return "", fmt.Errorf("the secret of hook %s was sealed by another cluster's key: %w", name, err)
	}
	return string(secret), nil
}

func (s *Service) sealer(name string) (cipher.AEAD, error) {
	block, err := aes.NewCipher(derived(s.config.ClusterKey, "holdfast hook seal v1", name))
	if err != nil {
		return nil, fmt.Errorf("seal the secret of hook %s: %w", name, err)
	}
	box, err := cipher.NewGCM(block)
	if err != nil {
		return nil, fmt.Errorf("seal the secret of hook %s: %w", name, err)
	}
	return box, nil
}

// ListHooks pages by name.
func (s *Service) ListHooks(ctx context.Context, caller holdfast.Caller, in holdfast.ListHooks) (holdfast.HookPage, error) {
	if err := caller.RequireAdmin("listing hooks"); err != nil {
		return holdfast.HookPage{}, err
	}
	if err := in.Validate(); err != nil {
		return holdfast.HookPage{}, err
	}
	size := pageOf(in.PageSize)
	var page holdfast.HookPage
	err := s.view(ctx, "list hooks", func(tx store.Tx, _ time.Time) error {
		page = holdfast.HookPage{}
		list, err := gather(ctx, tx, scanHook, `SELECT `+hookColumns+` FROM hook WHERE name > $1 ORDER BY name LIMIT $2`, in.PageToken, size+1)
		if len(list) > size {
			list = list[:size]
			page.NextPageToken = list[size-1].Name
		}
		page.Hooks = list
		return err
	})
	return page, err
}

// DeleteHook ends a source. Its deliveries stay known for as long as they are kept.
func (s *Service) DeleteHook(ctx context.Context, caller holdfast.Caller, name string) error {
	if err := caller.RequireAdmin("deleting a hook"); err != nil {
		return err
	}
	if err := holdfast.CheckHookName("name", name); err != nil {
		return err
	}
	return s.update(ctx, "delete hook", func(tx store.Tx, _ time.Time) error {
		n, err := affected(tx.ExecContext(ctx, `DELETE FROM hook WHERE name = $1`, name))
		if err != nil {
			return fmt.Errorf("delete hook %s: %w", name, err)
		}
		if n == 0 {
			return noHook(name)
		}
		return nil
	})
}

// openHook reads a source with its secret, for what comes in.
func (s *Service) openHook(ctx context.Context, name string) (h holdfast.Hook, secret string, err error) {
	var sealed string
	err = s.view(ctx, "find hook", func(tx store.Tx, _ time.Time) (err error) {
		h, err = scanHook(func(into ...any) error {
			return tx.QueryRowContext(ctx, `SELECT `+hookColumns+`, secret FROM hook WHERE name = $1`, name).Scan(append(into, &sealed)...)
		})
		if errors.Is(err, sql.ErrNoRows) {
			return noHook(name)
		}
		return err
	})
	if err != nil {
		return h, "", err
	}
	secret, err = s.unseal(name, sealed)
	return h, secret, err
}

// ListHookActions pages a project's, newest first.
func (s *Service) ListHookActions(ctx context.Context, caller holdfast.Caller, in holdfast.ListHookActions) (holdfast.HookActionPage, error) {
	if err := in.Validate(); err != nil {
		return holdfast.HookActionPage{}, err
	}
	size := pageOf(in.PageSize)
	where, args := `WHERE project = $1`, []any{string(caller.Project)}
	add := func(condition string, value any) {
		args = append(args, value)
		where += fmt.Sprintf(condition, len(args))
	}
	if in.PageToken != "" {
		add(` AND id < $%d`, in.PageToken)
	}
	if in.Hook != "" {
		add(` AND hook = $%d`, in.Hook)
	}
	if len(in.States) > 0 {
		where += ` AND state IN (''`
		for _, state := range slices.Compact(slices.Sorted(slices.Values(in.States))) {
			add(`, $%d`, string(state))
		}
		where += `)`
	}
	var page holdfast.HookActionPage
	err := s.view(ctx, "list hook actions", func(tx store.Tx, _ time.Time) error {
		page = holdfast.HookActionPage{}
		list, err := gather(ctx, tx, scanAction, `SELECT `+actionColumns+` FROM hook_action `+where+fmt.Sprintf(` ORDER BY id DESC LIMIT %d`, size+1), args...)
		if len(list) > size {
			list = list[:size]
			page.NextPageToken = string(list[size-1].ID)
		}
		for _, a := range list {
			page.Actions = append(page.Actions, a.HookAction)
		}
		return err
	})
	return page, err
}
