package holdfast_test

import (
	"strings"
	"testing"

	"github.com/holdfast-dev/holdfast"
)

// contract: A8 (trap T7)
func TestT7_EveryWrongFieldOfProjectsAndKeysIsNamedWithItsLimit(t *testing.T) {
	quota := func(n int64) holdfast.QuotaChange { return holdfast.QuotaChange{MemoryBytes: &n} }
	const id = "pj-00000000000000000000000000"
	tests := map[string]struct {
		in    validator
		field string // "" passes
		says  string
	}{
		"name":             {holdfast.CreateProject{Name: "a-1"}, "", ""},
		"longest name":     {holdfast.CreateProject{Name: strings.Repeat("a", 63), Quotas: quota(0)}, "", ""},
		"no name":          {holdfast.CreateProject{}, "name", "1 to 63"},
		"long name":        {holdfast.CreateProject{Name: strings.Repeat("a", 64)}, "name", "64"},
		"upper case":       {holdfast.CreateProject{Name: "Agents"}, "name", "lower-case"},
		"hyphen first":     {holdfast.CreateProject{Name: "-a"}, "name", "between"},
		"hyphen last":      {holdfast.CreateProject{Name: "a-"}, "name", "between"},
		"not ASCII":        {holdfast.CreateProject{Name: "é"}, "name", "lower-case"},
		"name like an id":  {holdfast.CreateProject{Name: id}, "name", "id"},
		"quota below none": {holdfast.CreateProject{Name: "a", Quotas: quota(-2)}, "quotas.memory_bytes", "-1 for no limit"},
		"quota too large":  {holdfast.SetQuotas{Project: "a", Quotas: quota(holdfast.MaxQuota + 1)}, "quotas.memory_bytes", "between 0"},
		"largest quota":    {holdfast.SetQuotas{Project: id, Quotas: quota(holdfast.MaxQuota)}, "", ""},
		"no limit":         {holdfast.SetQuotas{Project: "default", Quotas: quota(holdfast.NoLimit)}, "", ""},
		"no project":       {holdfast.SetQuotas{}, "project", "empty"},
		"page size":        {holdfast.ListProjects{PageSize: 1001}, "page_size", "1000"},
		"key":              {holdfast.CreateKey{Project: "a", Name: "bot", Role: holdfast.RoleAdmin}, "", ""},
		"key, no name":     {holdfast.CreateKey{Project: "a"}, "name", "who"},
		"key, long name":   {holdfast.CreateKey{Project: "a", Name: strings.Repeat("x", 129)}, "name", "129"},
		"key, two lines":   {holdfast.CreateKey{Project: "a", Name: "a\nb"}, "name", "control"},
		"key, no project":  {holdfast.CreateKey{Name: "bot"}, "project", "empty"},
		"key, role":        {holdfast.CreateKey{Project: "a", Name: "bot", Role: "ROOT"}, "role", "MEMBER, ADMIN"},
		"keys of all":      {holdfast.ListKeys{}, "", ""},
		"keys of nothing":  {holdfast.ListKeys{Project: "A"}, "project", "lower-case"},
		"keys' page token": {holdfast.ListKeys{PageToken: "ab"}, "page_token", "none"},
		"page token":       {holdfast.ListProjects{PageToken: "A"}, "page_token", "none"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			err := test.in.Validate()
			if test.field == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			e := holdfast.AsError(err)
			if e == nil || e.Code != holdfast.InvalidArgument || e.Details["field"] != test.field || !strings.Contains(e.Message, test.says) {
				t.Errorf("got %v, want %s with %q", err, test.field, test.says)
			}
		})
	}
}

func TestAnAdminIsOnlyWhoIsSaidToBe(t *testing.T) {
	for role, want := range map[holdfast.Role]holdfast.Code{holdfast.RoleAdmin: "", holdfast.RoleMember: holdfast.PermissionDenied, "": holdfast.PermissionDenied, "admin": holdfast.PermissionDenied} {
		if err := (holdfast.Caller{Role: role}).RequireAdmin("this"); holdfast.CodeOf(err) != want {
			t.Errorf("%q: %v", role, err)
		}
	}
}
