package server

import (
	"context"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/rpc"
)

// Over the wire: the first start's admin key makes a project and a member's key;
// the member uses its project alone, within its quota, until its key is revoked.
func TestTheAdminKeyOfTheFirstStartMakesAProjectWithKeysAndQuotas(t *testing.T) {
	dir := t.TempDir()
	s, admin := start(t, Config{DataDir: dir})
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	none := holdfast.Caller{}
	one := int64(1)
	p, err := admin.Projects.CreateProject(ctx, none, holdfast.CreateProject{Name: "agents", Quotas: holdfast.QuotaChange{Sandboxes: &one}})
	if err != nil {
		t.Fatal(err)
	}
	key, err := admin.Keys.CreateKey(ctx, none, holdfast.CreateKey{Project: "agents", Name: "bot"})
	if err != nil {
		t.Fatal(err)
	}
	member := rpc.Dial(rpc.NewHTTPClient(), s.URL(), key.Secret)
	sb, err := member.Sandboxes.CreateSandbox(ctx, none, holdfast.CreateSandbox{RequestID: "r1", Environment: "base"})
	if err != nil || sb.Project != p.ID || sb.Creator != "bot" {
		t.Fatalf("a member's create: %+v, %v", sb, err)
	}
	_, err = member.Sandboxes.CreateSandbox(ctx, none, holdfast.CreateSandbox{RequestID: "r2", Environment: "base"})
	if holdfast.CodeOf(err) != holdfast.ResourceExhausted || holdfast.ReasonOf(err) != holdfast.ReasonQuota {
		t.Errorf("over the quota: %v", err)
	}
	if _, err = admin.Sandboxes.GetSandbox(ctx, none, sb.ID); holdfast.CodeOf(err) != holdfast.NotFound {
		t.Errorf("another project's sandbox: %v", err)
	}
	if _, err = member.Keys.ListKeys(ctx, none, holdfast.ListKeys{}); holdfast.CodeOf(err) != holdfast.PermissionDenied {
		t.Errorf("a member lists keys: %v", err)
	}
	if _, err = admin.Keys.RevokeKey(ctx, none, key.Key.ID); err != nil {
		t.Fatal(err)
	}
	if _, err = member.Sandboxes.GetSandbox(ctx, none, sb.ID); holdfast.CodeOf(err) != holdfast.Unauthenticated {
		t.Errorf("after the key was revoked: %v", err)
	}

	adminKey, _ := s.AdminKey()
	if err := s.Shutdown(ctx); err != nil {
		t.Fatal(err)
	}
	again, admin := start(t, Config{DataDir: dir})
	if key, fresh := again.AdminKey(); key != adminKey || fresh {
		t.Error("the second start has another admin key")
	}
	if p, err = admin.Projects.GetProject(ctx, none, "agents"); err != nil || p.Usage.Sandboxes != 1 {
		t.Errorf("after a restart: %+v, %v", p, err)
	}
}
