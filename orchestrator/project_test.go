package orchestrator

import (
	"context"
	"strings"
	"testing"

	"github.com/holdfast-dev/holdfast"
)

var root = holdfast.Caller{Project: holdfast.ProjectDefault, Name: "root", Role: holdfast.RoleAdmin}

// project makes a project.
func (h *harness) project(name string, quotas holdfast.QuotaChange) holdfast.Project {
	h.t.Helper()
	p, err := h.CreateProject(h.t.Context(), root, holdfast.CreateProject{Name: name, Quotas: quotas})
	if err != nil {
		h.t.Fatalf("create project %s: %v", name, err)
	}
	return p
}

// contract: A3. A project is keyed by its name, and a repeat resets nothing.
func TestA3_AProjectsNameKeysItsCreate(t *testing.T) {
	h := newHarness(t)
	first := h.project("agents", holdfast.QuotaChange{Sandboxes: new(int64(3))})
	want := holdfast.Quotas{Sandboxes: 3, CPUMillis: holdfast.NoLimit, MemoryBytes: holdfast.NoLimit}
	if first.Quotas != want || first.Usage != (holdfast.Usage{}) || first.CreatedAt.IsZero() {
		t.Fatalf("created %+v", first)
	}
	set, err := h.SetQuotas(t.Context(), root, holdfast.SetQuotas{Project: "agents", Quotas: holdfast.QuotaChange{Sandboxes: new(int64(5))}})
	if err != nil || set.Quotas.Sandboxes != 5 || set.ID != first.ID || set.UpdatedAt.Before(first.UpdatedAt) {
		t.Fatalf("set %+v, %v", set, err)
	}
	if again := h.project("agents", holdfast.QuotaChange{Sandboxes: new(int64(3))}); again != set {
		t.Errorf("the repeat is %+v, not the project as it is now, %+v", again, set)
	}
	_, err = h.CreateProject(t.Context(), root, holdfast.CreateProject{Name: "agents", Quotas: holdfast.QuotaChange{CPUMillis: new(int64(1))}})
	wantError(t, err, holdfast.AlreadyExists, holdfast.ReasonNameTaken)
	if fields := holdfast.AsError(err).Details["fields"]; fields != "quotas.sandboxes, quotas.cpu_millis" {
		t.Errorf("different are %q", fields)
	}
	if n := h.count(`SELECT COUNT(*) FROM quota_shard WHERE project = $1`, string(first.ID)); n != quotaShards {
		t.Errorf("%d shards, want %d", n, quotaShards)
	}
}

// The project default exists from the first start, and a later start leaves it
// as it is.
func TestTheProjectDefaultExistsFromTheFirstStart(t *testing.T) {
	h := newHarness(t)
	if _, err := h.SetQuotas(t.Context(), root, holdfast.SetQuotas{Project: "default", Quotas: holdfast.QuotaChange{Sandboxes: new(int64(7))}}); err != nil {
		t.Fatal(err)
	}
	next := newHarnessOn(t, h.db, h.fleet)
	p, err := next.GetProject(t.Context(), alice, "default")
	if err != nil || p.ID != holdfast.ProjectDefault || p.Quotas.Sandboxes != 7 {
		t.Errorf("%+v, %v", p, err)
	}
}

// contract: A8. A member's key manages nothing, and sees its own project alone.
func TestA8_OnlyAnAdminManagesProjectsAndKeys(t *testing.T) {
	h, ctx := newHarness(t), t.Context()
	p := h.project("agents", holdfast.QuotaChange{})
	key, err := h.CreateKey(ctx, root, holdfast.CreateKey{Project: "agents", Name: "bot"})
	if err != nil {
		t.Fatal(err)
	}
	for _, member := range []holdfast.Caller{alice, {Project: p.ID, Name: "bot", Role: holdfast.RoleMember}} {
		for what, call := range map[string]func() error{
			"create project": func() error {
				_, err := h.CreateProject(ctx, member, holdfast.CreateProject{Name: "other"})
				return err
			},
			"set quotas": func() error {
				_, err := h.SetQuotas(ctx, member, holdfast.SetQuotas{Project: string(member.Project)})
				return err
			},
			"create key": func() error {
				_, err := h.CreateKey(ctx, member, holdfast.CreateKey{Project: string(member.Project), Name: "me"})
				return err
			},
			"list keys":  func() error { _, err := h.ListKeys(ctx, member, holdfast.ListKeys{}); return err },
			"revoke key": func() error { _, err := h.RevokeKey(ctx, member, key.Key.ID); return err },
		} {
			if err := call(); holdfast.CodeOf(err) != holdfast.PermissionDenied || holdfast.ReasonOf(err) != holdfast.ReasonNotAdmin {
				t.Errorf("%s: %v", what, err)
			}
		}
	}
	_, err = h.GetProject(ctx, alice, "agents")
	wantError(t, err, holdfast.NotFound, holdfast.ReasonUnknown)
	page, err := h.ListProjects(ctx, alice, holdfast.ListProjects{})
	if err != nil || len(page.Projects) != 1 || page.Projects[0].ID != holdfast.ProjectDefault || page.NextPageToken != "" {
		t.Errorf("a member lists %+v, %v", page, err)
	}
	if page, err = h.ListProjects(ctx, alice, holdfast.ListProjects{PageToken: "default"}); err != nil || len(page.Projects) != 0 {
		t.Errorf("a member's second page is %+v, %v", page, err)
	}
}

func TestProjectsArePagedByName(t *testing.T) {
	h := newHarness(t)
	for _, name := range []string{"b", "a", "c"} {
		h.project(name, holdfast.QuotaChange{})
	}
	var names []string
	for in := (holdfast.ListProjects{PageSize: 3}); ; {
		page, err := h.ListProjects(t.Context(), root, in)
		if err != nil || len(page.Projects) > 3 {
			t.Fatalf("%+v, %v", page, err)
		}
		for _, p := range page.Projects {
			names = append(names, p.Name)
		}
		if in.PageToken = page.NextPageToken; in.PageToken == "" {
			break
		}
	}
	if got := strings.Join(names, " "); got != "a b c default" {
		t.Errorf("listed %s", got)
	}
}

func TestUnknownAndMalformedProjectsAreSaidSo(t *testing.T) {
	h, ctx := newHarness(t), t.Context()
	for reference, code := range map[string]holdfast.Code{
		"nothere": holdfast.NotFound, "pj-00000000000000000000000000": holdfast.NotFound, "": holdfast.InvalidArgument, "No Name": holdfast.InvalidArgument,
	} {
		_, err := h.GetProject(ctx, root, reference)
		_, err2 := h.SetQuotas(ctx, root, holdfast.SetQuotas{Project: reference})
		_, err3 := h.CreateKey(ctx, root, holdfast.CreateKey{Project: reference, Name: "n"})
		for _, err := range []error{err, err2, err3} {
			if holdfast.CodeOf(err) != code {
				t.Errorf("%q: %v, want %s", reference, err, code)
			}
		}
	}
	nobody := holdfast.Caller{Project: "pj-00000000000000000000000000"}
	_, err := h.CreateSandbox(ctx, nobody, holdfast.CreateSandbox{RequestID: "r", Environment: "base"})
	wantError(t, err, holdfast.NotFound, holdfast.ReasonUnknown)
}

// Interface: what a server offers of this package.
var _ interface {
	holdfast.ProjectService
	holdfast.KeyService
	Authenticate(context.Context, string) (holdfast.Caller, error)
} = (*Service)(nil)
