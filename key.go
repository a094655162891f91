package holdfast

import (
	"context"
	"time"
)

// Role says what an API key lets its holder do.
type Role string

// The roles. Both act in the key's own project; an ADMIN also manages the whole
// installation.
const (
	RoleMember Role = "MEMBER" // sandboxes of its project
	RoleAdmin  Role = "ADMIN"  // and projects, keys and hosts
)

// KeyCache is how long a server may go on letting in a key that was revoked
// through another one.
const KeyCache = 5 * time.Second

// Key is an API key as it is listed: its secret is not kept, only a hash.
type Key struct {
	ID        KeyID
	Project   ProjectID
	Name      string // the creator that its sandboxes show
	Role      Role
	CreatedAt time.Time
	RevokedAt time.Time // zero while it is valid
}

// CreateKey is the input of a key's create. It has no request id: a repeat makes
// another key (contract: A3).
type CreateKey struct {
	Project string // id or name
	Name    string // for people; need not be unique
	Role    Role   // "": MEMBER
}

// CreatedKey is a new key with its secret, hf_…, which is told this once.
type CreatedKey struct {
	Key    Key
	Secret string
}

// ListKeys filters and pages, by id.
type ListKeys struct {
	Project   string // id or name; "": of every project
	Revoked   bool   // revoked ones too
	PageSize  int    // zero: 50; at most 1000
	PageToken string
}

// KeyPage is one page of a list; NextPageToken is "" on the last.
type KeyPage struct {
	Keys          []Key
	NextPageToken string
}

// KeyService manages API keys; every method needs an ADMIN's.
type KeyService interface {
	CreateKey(ctx context.Context, caller Caller, in CreateKey) (CreatedKey, error)
	ListKeys(ctx context.Context, caller Caller, in ListKeys) (KeyPage, error)
	// RevokeKey makes a key worthless, at this server at once and at others within
	// KeyCache. Revoking what is revoked changes nothing; NOT_FOUND is unknown.
	RevokeKey(ctx context.Context, caller Caller, id KeyID) (Key, error)
}

// RequireAdmin returns PERMISSION_DENIED unless the caller is an ADMIN. what says
// what was asked for, as in "listing keys". A caller without a role is a MEMBER.
func (c Caller) RequireAdmin(what string) error {
	if c.Role == RoleAdmin {
		return nil
	}
	return E(PermissionDenied, ReasonNotAdmin, "%s needs an admin's API key, and %q is a member's", what, c.Name)
}

// Validate checks every field.
func (in CreateKey) Validate() error {
	if in.Name == "" {
		return bad("name", "is empty; say who or what will use the key")
	}
	return firstError(
		CheckProject("project", in.Project),
		checkText("name", in.Name, MaxName),
		checkOneOf("role", in.Role, "", RoleMember, RoleAdmin),
	)
}

// Validate checks the filter and the page.
func (in ListKeys) Validate() error {
	if in.Project != "" {
		if err := CheckProject("project", in.Project); err != nil {
			return err
		}
	}
	if in.PageToken != "" && CheckID("page_token", PrefixKey, in.PageToken) != nil {
		return bad("page_token", "is none that a list returned")
	}
	return checkPage(in.PageSize, in.PageToken)
}
