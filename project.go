package holdfast

import (
	"context"
	"time"
)

// MaxProjectName bounds a project's name, in bytes: a DNS label's length.
const MaxProjectName = 63

// NoLimit is the quota that limits nothing.
const NoLimit int64 = -1

// MaxQuota is the largest quota that is a limit, so that sums never overflow.
const MaxQuota int64 = 1 << 60

// Project is the scope of names, request ids, keys and quotas. Projects live for
// ever, since the keys of creates live as long as their project (contract: A3).
type Project struct {
	ID        ProjectID
	Name      string // unique; 1 to 63 lower-case letters, digits and hyphens
	Quotas    Quotas
	Usage     Usage
	CreatedAt time.Time
	UpdatedAt time.Time // when its quotas were last set
}

// Quotas bound what a project's sandboxes may hold at once; NoLimit bounds
// nothing, and zero lets nothing be created (contract: A8).
type Quotas struct {
	Sandboxes   int64
	CPUMillis   int64 // thousandths of a processor
	MemoryBytes int64
}

// Usage is what a project's sandboxes hold. One holds from the transaction that
// creates it to the one that makes it DELETED, or FAILED: a failed one's
// resources are given back at once (contract: A11), while one that is DELETING
// has them until its host confirms the end.
type Usage struct {
	Sandboxes   int64
	CPUMillis   int64
	MemoryBytes int64
}

// QuotaChange names the quotas to set; nil leaves one as it is.
type QuotaChange struct {
	Sandboxes   *int64
	CPUMillis   *int64
	MemoryBytes *int64
}

// Of returns q with the change made.
func (c QuotaChange) Of(q Quotas) Quotas {
	for _, set := range []struct{ from, to *int64 }{
		{c.Sandboxes, &q.Sandboxes}, {c.CPUMillis, &q.CPUMillis}, {c.MemoryBytes, &q.MemoryBytes},
	} {
		if set.from != nil {
			*set.to = *set.from
		}
	}
	return q
}

// CreateProject is the input of a project's create, which its name keys: a
// repeat is the same project, as it is now (contract: A3).
type CreateProject struct {
	Name   string
	Quotas QuotaChange // nil: NoLimit
}

// SetQuotas sets quotas of a project. What it holds beyond a new quota it keeps;
// nothing more is created until it holds less.
type SetQuotas struct {
	Project string // id or name
	Quotas  QuotaChange
}

// ListProjects pages, by name.
type ListProjects struct {
	PageSize  int // zero: 50; at most 1000
	PageToken string
}

// ProjectPage is one page of a list; NextPageToken is "" on the last.
type ProjectPage struct {
	Projects      []Project
	NextPageToken string
}

// ProjectService is for operators. An ADMIN's key creates projects, sees all and
// sets quotas; a MEMBER's sees its own project, and others are NOT_FOUND.
type ProjectService interface {
	CreateProject(ctx context.Context, caller Caller, in CreateProject) (Project, error)
	// GetProject takes an id or a name.
	GetProject(ctx context.Context, caller Caller, project string) (Project, error)
	ListProjects(ctx context.Context, caller Caller, in ListProjects) (ProjectPage, error)
	SetQuotas(ctx context.Context, caller Caller, in SetQuotas) (Project, error)
}

// Validate checks the name and each quota.
func (in CreateProject) Validate() error {
	return firstError(checkProjectName("name", in.Name), in.Quotas.Validate())
}

// Validate checks the reference and each quota.
func (in SetQuotas) Validate() error {
	return firstError(CheckProject("project", in.Project), in.Quotas.Validate())
}

// Validate checks the page.
func (in ListProjects) Validate() error {
	if in.PageToken != "" && checkProjectName("page_token", in.PageToken) != nil {
		return bad("page_token", "is none that a list returned")
	}
	return checkPage(in.PageSize, in.PageToken)
}

// Validate checks that each quota is a number of things, or NoLimit.
func (c QuotaChange) Validate() error {
	for _, q := range []struct {
		field string
		value *int64
	}{{"quotas.sandboxes", c.Sandboxes}, {"quotas.cpu_millis", c.CPUMillis}, {"quotas.memory_bytes", c.MemoryBytes}} {
		if q.value != nil && (*q.value < NoLimit || *q.value > MaxQuota) {
			return bad(q.field, "is %d; it must be between 0 and %d, or %d for no limit", *q.value, MaxQuota, NoLimit)
		}
	}
	return nil
}

// CheckProject reports whether reference has the form of a project's id or name,
// as an INVALID_ARGUMENT error that names the field.
func CheckProject(field, reference string) error {
	if CheckID(field, PrefixProject, reference) == nil {
		return nil
	}
	return checkProjectName(field, reference)
}

// checkProjectName refuses what has the form of an id, so that a reference is
// never both.
func checkProjectName(field, name string) error {
	switch {
	case name == "":
		return bad(field, "is empty; a project's name has 1 to %d lower-case letters, digits and hyphens", MaxProjectName)
	case len(name) > MaxProjectName:
		return bad(field, "has %d bytes; at most %d are allowed", len(name), MaxProjectName)
	case CheckID(field, PrefixProject, name) == nil:
		return bad(field, "%q has the form of an id; another name is needed", name)
	}
	for i, r := range name {
		alphanumeric := 'a' <= r && r <= 'z' || '0' <= r && r <= '9'
		if !alphanumeric && (r != '-' || i == 0 || i == len(name)-1) {
			return bad(field, "%q is no project's name: lower-case letters and digits, and hyphens between them", shown(name))
		}
	}
	return nil
}
