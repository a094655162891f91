package orchestrator

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/store"
)

func (h *harness) key(in holdfast.CreateKey) holdfast.CreatedKey {
	h.t.Helper()
	k, err := h.CreateKey(h.t.Context(), root, in)
	if err != nil {
		h.t.Fatal(err)
	}
	return k
}

func TestAKeyStandsForItsProjectNameAndRole(t *testing.T) {
	h := newHarness(t)
	p := h.project("agents", holdfast.QuotaChange{})
	member := h.key(holdfast.CreateKey{Project: "agents", Name: "bot"})
	admin := h.key(holdfast.CreateKey{Project: string(p.ID), Name: "ops", Role: holdfast.RoleAdmin})
	for _, c := range []struct {
		made holdfast.CreatedKey
		want holdfast.Caller
	}{
		{member, holdfast.Caller{Project: p.ID, Name: "bot", Role: holdfast.RoleMember, Key: member.Key.ID}},
		{admin, holdfast.Caller{Project: p.ID, Name: "ops", Role: holdfast.RoleAdmin, Key: admin.Key.ID}},
	} {
		for range 2 { // asked, then remembered
			got, err := h.Authenticate(t.Context(), c.made.Secret)
			if err != nil || got != c.want {
				t.Errorf("%+v, %v, want %+v", got, err, c.want)
			}
		}
	}
	if n := h.count(`SELECT COUNT(*) FROM api_key WHERE hash LIKE '%hf_%' OR hash = $1`, member.Secret); n != 0 || len(member.Secret) != len("hf_")+32 {
		t.Errorf("the secret %q is kept, or short", member.Secret)
	}
	for _, no := range []string{"", "hf_", member.Secret[:len(member.Secret)-1], member.Secret + "a", "hf_" + strings.Repeat("x", 1<<16), "Bearer"} {
		_, err := h.Authenticate(t.Context(), no)
		wantError(t, err, holdfast.NotFound, holdfast.ReasonUnknown)
	}
}

// A revoked key is refused at once where it was revoked, and within KeyCache by a
// replica that had just let it in.
func TestARevokedKeyStopsAtOnceHereAndWithin5sElsewhere(t *testing.T) {
	h := newHarness(t)
	var at atomic.Int64
	start := time.Now()
	clock := func() time.Time { return start.Add(time.Duration(at.Load())) }
	other := newHarnessOn(t, h.db, h.fleet, func(c *Config) { c.Clock = clock })
	k := h.key(holdfast.CreateKey{Project: "default", Name: "bot"})
	for _, s := range []*harness{h, other} {
		if _, err := s.Authenticate(t.Context(), k.Secret); err != nil {
			t.Fatal(err)
		}
	}
	revoked, err := h.RevokeKey(t.Context(), root, k.Key.ID)
	if err != nil || revoked.RevokedAt.IsZero() {
		t.Fatalf("%+v, %v", revoked, err)
	}
	_, err = h.Authenticate(t.Context(), k.Secret)
	wantError(t, err, holdfast.NotFound, holdfast.ReasonUnknown)
	at.Store(int64(5 * time.Second))
	_, err = other.Authenticate(t.Context(), k.Secret)
	wantError(t, err, holdfast.NotFound, holdfast.ReasonUnknown)

	again, err := h.RevokeKey(t.Context(), root, k.Key.ID)
	if err != nil || again != revoked {
		t.Errorf("revoking again: %+v, %v, want %+v", again, err, revoked)
	}
	_, err = h.RevokeKey(t.Context(), root, "ky-00000000000000000000000000")
	wantError(t, err, holdfast.NotFound, holdfast.ReasonUnknown)
	_, err = h.RevokeKey(t.Context(), root, "no")
	wantError(t, err, holdfast.InvalidArgument, holdfast.ReasonBadField)
}

// An answer that was read before a revocation and arrives after it is not
// remembered.
func TestALookUpThatARevocationOvertakesIsNotRemembered(t *testing.T) {
	c, now := newKeyCache(), time.Now()
	_, _, epoch := c.get("h", now)
	c.forget()
	c.put("h", alice, now, epoch)
	if _, found, _ := c.get("h", now); found {
		t.Error("it is remembered")
	}
	_, _, epoch = c.get("h", now)
	c.put("h", alice, now, epoch)
	if _, found, _ := c.get("h", now.Add(holdfast.KeyCache-1)); !found {
		t.Error("nothing is remembered")
	}
	if _, found, _ := c.get("h", now.Add(holdfast.KeyCache)); found {
		t.Error("it is remembered for too long")
	}
	for i := range 3 * maxKeys {
		c.put(fmt.Sprint(i), alice, now, epoch)
	}
	if len(c.known) > maxKeys {
		t.Errorf("%d keys are remembered", len(c.known))
	}
}

func TestKeysAreListedWithoutTheRevokedAndPaged(t *testing.T) {
	h, ctx := newHarness(t), t.Context()
	h.project("agents", holdfast.QuotaChange{})
	var made []holdfast.KeyID
	for i := range 5 {
		made = append(made, h.key(holdfast.CreateKey{Project: []string{"default", "agents"}[i%2], Name: fmt.Sprint(i)}).Key.ID)
	}
	if _, err := h.RevokeKey(ctx, root, made[0]); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		in   holdfast.ListKeys
		want string
	}{
		{holdfast.ListKeys{}, "1 2 3 4"}, {holdfast.ListKeys{Revoked: true}, "0 1 2 3 4"},
		{holdfast.ListKeys{Project: "default"}, "2 4"}, {holdfast.ListKeys{Project: "agents", Revoked: true}, "1 3"},
	} {
		c.in.PageSize = 2
		var names []string
		for {
			page, err := h.ListKeys(ctx, root, c.in)
			if err != nil || len(page.Keys) > 2 {
				t.Fatalf("%+v, %v", page, err)
			}
			for _, k := range page.Keys {
				names = append(names, k.Name)
			}
			if c.in.PageToken = page.NextPageToken; c.in.PageToken == "" {
				break
			}
		}
		if got := strings.Join(names, " "); got != c.want {
			t.Errorf("%+v: %s, want %s", c.in, got, c.want)
		}
	}
	_, err := h.ListKeys(ctx, root, holdfast.ListKeys{Project: "nothere"})
	wantError(t, err, holdfast.NotFound, holdfast.ReasonUnknown)
}

// A database that does not answer is not a wrong key: the caller may retry.
func TestADatabaseThatFailsIsNotAWrongKey(t *testing.T) {
	h := newHarness(t)
	k := h.key(holdfast.CreateKey{Project: "default", Name: "bot"})
	err := h.db.Update(t.Context(), func(tx store.Tx) error {
		_, err := tx.ExecContext(t.Context(), `ALTER TABLE api_key RENAME TO elsewhere`)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	_, err = h.Authenticate(t.Context(), k.Secret)
	wantError(t, err, holdfast.Unavailable, holdfast.ReasonStorage)
}
