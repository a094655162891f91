package rpc

import (
	"context"

	"github.com/holdfast-dev/holdfast"
	v1 "github.com/holdfast-dev/holdfast/api/holdfast/v1"
	"github.com/holdfast-dev/holdfast/api/holdfast/v1/holdfastv1connect"
)

type projectHandler struct{ service holdfast.ProjectService }

func (h projectHandler) CreateProject(ctx context.Context, req *v1.CreateProjectRequest) (*v1.Project, error) {
	in := holdfast.CreateProject{Name: req.GetName(), Quotas: quotasFromWire(req.GetQuotas())}
	return answer(projectToWire)(h.service.CreateProject(ctx, callerOf(ctx), in))
}

func (h projectHandler) GetProject(ctx context.Context, req *v1.GetProjectRequest) (*v1.Project, error) {
	return answer(projectToWire)(h.service.GetProject(ctx, callerOf(ctx), req.GetProject()))
}

func (h projectHandler) ListProjects(ctx context.Context, req *v1.ListProjectsRequest) (*v1.ListProjectsResponse, error) {
	in := holdfast.ListProjects{PageSize: int(req.GetPageSize()), PageToken: req.GetPageToken()}
	return answer(projectsToWire)(h.service.ListProjects(ctx, callerOf(ctx), in))
}

func (h projectHandler) SetQuotas(ctx context.Context, req *v1.SetQuotasRequest) (*v1.Project, error) {
	in := holdfast.SetQuotas{Project: req.GetProject(), Quotas: quotasFromWire(req.GetQuotas())}
	return answer(projectToWire)(h.service.SetQuotas(ctx, callerOf(ctx), in))
}

type projectDialer struct {
	client holdfastv1connect.ProjectServiceClient
}

func (d projectDialer) CreateProject(ctx context.Context, _ holdfast.Caller, in holdfast.CreateProject) (holdfast.Project, error) {
	req := &v1.CreateProjectRequest{Name: in.Name, Quotas: quotasToWire(in.Quotas)}
	return call(ctx, "CreateProject", d.client.CreateProject, req, projectFromWire)
}

func (d projectDialer) GetProject(ctx context.Context, _ holdfast.Caller, project string) (holdfast.Project, error) {
	return call(ctx, "GetProject", d.client.GetProject, &v1.GetProjectRequest{Project: project}, projectFromWire)
}

func (d projectDialer) ListProjects(ctx context.Context, _ holdfast.Caller, in holdfast.ListProjects) (holdfast.ProjectPage, error) {
	req := &v1.ListProjectsRequest{PageSize: pageSize(in.PageSize), PageToken: in.PageToken}
	return call(ctx, "ListProjects", d.client.ListProjects, req, projectsFromWire)
}

func (d projectDialer) SetQuotas(ctx context.Context, _ holdfast.Caller, in holdfast.SetQuotas) (holdfast.Project, error) {
	req := &v1.SetQuotasRequest{Project: in.Project, Quotas: quotasToWire(in.Quotas)}
	return call(ctx, "SetQuotas", d.client.SetQuotas, req, projectFromWire)
}

func projectToWire(p holdfast.Project) *v1.Project {
	q := p.Quotas
	return &v1.Project{
		Id: string(p.ID), Name: text(p.Name),
		Quotas:    &v1.Quotas{Sandboxes: &q.Sandboxes, CpuMillis: &q.CPUMillis, MemoryBytes: &q.MemoryBytes},
		Usage:     &v1.Usage{Sandboxes: p.Usage.Sandboxes, CpuMillis: p.Usage.CPUMillis, MemoryBytes: p.Usage.MemoryBytes},
		CreatedAt: stamp(p.CreatedAt), UpdatedAt: stamp(p.UpdatedAt),
	}
}

// projectFromWire takes a quota that is not said for no limit: a server that does
// not know it does not limit it.
func projectFromWire(p *v1.Project) holdfast.Project {
	none := holdfast.Quotas{Sandboxes: holdfast.NoLimit, CPUMillis: holdfast.NoLimit, MemoryBytes: holdfast.NoLimit}
	return holdfast.Project{
		ID: holdfast.ProjectID(p.GetId()), Name: p.GetName(), Quotas: quotasFromWire(p.GetQuotas()).Of(none),
		Usage:     holdfast.Usage{Sandboxes: p.GetUsage().GetSandboxes(), CPUMillis: p.GetUsage().GetCpuMillis(), MemoryBytes: p.GetUsage().GetMemoryBytes()},
		CreatedAt: instant(p.GetCreatedAt()), UpdatedAt: instant(p.GetUpdatedAt()),
	}
}

func quotasToWire(c holdfast.QuotaChange) *v1.Quotas {
	if c == (holdfast.QuotaChange{}) {
		return nil
	}
	return &v1.Quotas{Sandboxes: c.Sandboxes, CpuMillis: c.CPUMillis, MemoryBytes: c.MemoryBytes}
}

func quotasFromWire(q *v1.Quotas) holdfast.QuotaChange {
	if q == nil {
		return holdfast.QuotaChange{}
	}
	return holdfast.QuotaChange{Sandboxes: q.Sandboxes, CPUMillis: q.CpuMillis, MemoryBytes: q.MemoryBytes}
}

func projectsToWire(page holdfast.ProjectPage) *v1.ListProjectsResponse {
	return &v1.ListProjectsResponse{Projects: each(page.Projects, projectToWire), NextPageToken: page.NextPageToken}
}

func projectsFromWire(page *v1.ListProjectsResponse) holdfast.ProjectPage {
	return holdfast.ProjectPage{Projects: each(page.GetProjects(), projectFromWire), NextPageToken: page.GetNextPageToken()}
}
