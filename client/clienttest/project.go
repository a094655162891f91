package clienttest

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/holdfast-dev/holdfast"
)

func project(id holdfast.ProjectID, name string, quotas holdfast.QuotaChange, now time.Time) *holdfast.Project {
	none := holdfast.Quotas{Sandboxes: holdfast.NoLimit, CPUMillis: holdfast.NoLimit, MemoryBytes: holdfast.NoLimit}
	return &holdfast.Project{ID: id, Name: name, Quotas: quotas.Of(none), CreatedAt: now, UpdatedAt: now}
}

// find returns a project by id or name; the records are locked.
func (f *Fake) find(reference string) (*holdfast.Project, error) {
	for name, p := range f.projects {
		if name == reference || string(p.ID) == reference {
			return p, nil
		}
	}
	return nil, unknown("project", reference)
}

// CreateProject makes a project once for each name.
func (f *Fake) CreateProject(ctx context.Context, caller holdfast.Caller, in holdfast.CreateProject) (out holdfast.Project, err error) {
	if err := in.Validate(); err != nil {
		return out, err
	}
	err = f.do(ctx, Call{"CreateProject", in}, func() error {
		if _, known := f.projects[in.Name]; !known {
			f.projects[in.Name] = project(holdfast.ProjectID(f.ids.New(holdfast.PrefixProject)), in.Name, in.Quotas, f.now())
		}
		out = *f.projects[in.Name]
		return caller.RequireAdmin("creating a project")
	})
	return out, err
}

// GetProject reads a record.
func (f *Fake) GetProject(ctx context.Context, _ holdfast.Caller, reference string) (out holdfast.Project, err error) {
	if err := holdfast.CheckProject("project", reference); err != nil {
		return out, err
	}
	err = f.do(ctx, Call{"GetProject", reference}, func() error {
		p, err := f.find(reference)
		if err == nil {
			out = *p
		}
		return err
	})
	return out, err
}

// ListProjects lists by name; the page token is the last name.
func (f *Fake) ListProjects(ctx context.Context, _ holdfast.Caller, in holdfast.ListProjects) (page holdfast.ProjectPage, err error) {
	err = f.do(ctx, Call{"ListProjects", in}, func() error {
		for _, name := range slices.Sorted(maps.Keys(f.projects)) {
			if name <= in.PageToken {
				continue
			}
			if in.PageSize > 0 && len(page.Projects) == in.PageSize {
				page.NextPageToken = page.Projects[in.PageSize-1].Name
				break
			}
			page.Projects = append(page.Projects, *f.projects[name])
		}
		return nil
	})
	return page, err
}

// SetQuotas changes a record.
func (f *Fake) SetQuotas(ctx context.Context, _ holdfast.Caller, in holdfast.SetQuotas) (out holdfast.Project, err error) {
	if err := in.Validate(); err != nil {
		return out, err
	}
	err = f.do(ctx, Call{"SetQuotas", in}, func() error {
		p, err := f.find(in.Project)
		if err == nil {
			p.Quotas = in.Quotas.Of(p.Quotas)
			out = *p
		}
		return err
	})
	return out, err
}
