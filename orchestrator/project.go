package orchestrator

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/store"
)

const projectColumns = `p.id, p.name, p.sandboxes, p.cpu_millis, p.memory_bytes, p.created_at, p.updated_at`

// projectRows reads projects with what they hold.
const projectRows = `SELECT ` + projectColumns + `, CAST(COALESCE(SUM(q.sandboxes), 0) AS BIGINT), CAST(COALESCE(SUM(q.cpu_millis), 0) AS BIGINT),
	CAST(COALESCE(SUM(q.memory_bytes), 0) AS BIGINT) FROM project p LEFT JOIN quota_shard q ON q.project = p.id `

func scanProject(scan func(...any) error) (holdfast.Project, error) {
	var p holdfast.Project
	var created, updated int64
	err := scan(&p.ID, &p.Name, &p.Quotas.Sandboxes, &p.Quotas.CPUMillis, &p.Quotas.MemoryBytes, &created, &updated,
		&p.Usage.Sandboxes, &p.Usage.CPUMillis, &p.Usage.MemoryBytes)
	p.CreatedAt, p.UpdatedAt = store.FromMicros(created), store.FromMicros(updated)
	return p, err
}

func noProject(reference string) error {
	return holdfast.E(holdfast.NotFound, holdfast.ReasonUnknown, "no project %s", reference).On(reference)
}

// oneProject finds a project by id or name.
func oneProject(ctx context.Context, tx store.Tx, reference string) (holdfast.Project, error) {
	p, err := scanProject(tx.QueryRowContext(ctx, projectRows+`WHERE p.id = $1 OR p.name = $1 GROUP BY `+projectColumns, reference).Scan)
	if errors.Is(err, sql.ErrNoRows) {
		return p, noProject(reference)
	}
	if err != nil {
		return p, fmt.Errorf("read project %s: %w", reference, err)
	}
	return p, nil
}

// CreateProject makes a project of a name, or returns the one that it already
// names, as it is now (contract: A3).
func (s *Service) CreateProject(ctx context.Context, caller holdfast.Caller, in holdfast.CreateProject) (holdfast.Project, error) {
	if err := caller.RequireAdmin("creating a project"); err != nil {
		return holdfast.Project{}, err
	}
	if err := in.Validate(); err != nil {
		return holdfast.Project{}, err
	}
	id := holdfast.ProjectID(s.config.IDs.New(holdfast.PrefixProject))
	var out holdfast.Project
	err := s.update(ctx, "create project", func(tx store.Tx, now time.Time) error {
		if err := ensureProject(ctx, tx, now, id, in); err != nil {
			return err
		}
		var err error
		out, err = oneProject(ctx, tx, in.Name)
		return err
	})
	return out, err
}

// ensureProject records a project and its shards, unless the name is recorded
// already with the same input.
func ensureProject(ctx context.Context, tx store.Tx, now time.Time, id holdfast.ProjectID, in holdfast.CreateProject) error {
	sent, err := json.Marshal(in.Quotas)
	if err != nil {
		return fmt.Errorf("create project %s: %w", in.Name, err)
	}
	quotas := in.Quotas.Of(holdfast.Quotas{Sandboxes: holdfast.NoLimit, CPUMillis: holdfast.NoLimit, MemoryBytes: holdfast.NoLimit})
	res, err := tx.ExecContext(ctx, `INSERT INTO project (id, name, created_with, sandboxes, cpu_millis, memory_bytes, created_at, updated_at)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $7) ON CONFLICT DO NOTHING`,
		string(id), in.Name, string(sent), quotas.Sandboxes, quotas.CPUMillis, quotas.MemoryBytes, store.Micros(now))
	if err != nil {
		return fmt.Errorf("create project %s: %w", in.Name, err)
	}
	n, err := res.RowsAffected()
	if err != nil {
		return fmt.Errorf("create project %s: %w", in.Name, err)
	}
	if n == 1 {
		return saveShards(ctx, tx, id, newShards(quotas))
	}
	return sameProject(ctx, tx, in)
}

// sameProject refuses a name that was first used with other input, naming the
// fields. What was sent is compared, never what the quotas are now.
func sameProject(ctx context.Context, tx store.Tx, in holdfast.CreateProject) error {
	var id, raw string
	err := tx.QueryRowContext(ctx, `SELECT id, created_with FROM project WHERE name = $1`, in.Name).Scan(&id, &raw)
	if err != nil {
		return fmt.Errorf("read project %s: %w", in.Name, err)
	}
	var was holdfast.QuotaChange
	if err := json.Unmarshal([]byte(raw), &was); err != nil {
		return fmt.Errorf("read project %s: %w", in.Name, err)
	}
	var fields []string
	for _, f := range []struct {
		name    string
		was, is *int64
	}{
		{"quotas.sandboxes", was.Sandboxes, in.Quotas.Sandboxes},
		{"quotas.cpu_millis", was.CPUMillis, in.Quotas.CPUMillis},
		{"quotas.memory_bytes", was.MemoryBytes, in.Quotas.MemoryBytes},
	} {
		if (f.was == nil) != (f.is == nil) || f.was != nil && *f.was != *f.is {
			fields = append(fields, f.name)
		}
	}
	if len(fields) == 0 {
		return nil
	}
	list := strings.Join(fields, ", ")
	return holdfast.E(holdfast.AlreadyExists, holdfast.ReasonNameTaken,
		"project %s was created with other input, different in: %s; set quotas of a project that exists", in.Name, list).On(id).With("fields", list)
}

// ensureDefault makes the project that exists from the first start.
func (s *Service) ensureDefault(ctx context.Context) error {
	return s.update(ctx, "create the project default", func(tx store.Tx, now time.Time) error {
		return ensureProject(ctx, tx, now, holdfast.ProjectDefault, holdfast.CreateProject{Name: string(holdfast.ProjectDefault)})
	})
}

// GetProject observes; for a MEMBER there is its own project alone.
func (s *Service) GetProject(ctx context.Context, caller holdfast.Caller, reference string) (holdfast.Project, error) {
	if err := holdfast.CheckProject("project", reference); err != nil {
		return holdfast.Project{}, err
	}
	var out holdfast.Project
	err := s.view(ctx, "get project", func(tx store.Tx, _ time.Time) error {
		var err error
		out, err = oneProject(ctx, tx, reference)
		if err == nil && caller.Role != holdfast.RoleAdmin && caller.Project != out.ID {
			err = noProject(reference)
		}
		return err
	})
	if err != nil {
		return holdfast.Project{}, err
	}
	return out, nil
}

// ListProjects pages by name; for a MEMBER there is its own project alone.
func (s *Service) ListProjects(ctx context.Context, caller holdfast.Caller, in holdfast.ListProjects) (holdfast.ProjectPage, error) {
	if err := in.Validate(); err != nil {
		return holdfast.ProjectPage{}, err
	}
	if caller.Role != holdfast.RoleAdmin {
		p, err := s.GetProject(ctx, caller, string(caller.Project))
		if err != nil || p.Name <= in.PageToken {
			return holdfast.ProjectPage{}, err
		}
		return holdfast.ProjectPage{Projects: []holdfast.Project{p}}, nil
	}
	size := in.PageSize
	if size == 0 {
		size = holdfast.DefaultPageSize
	}
	var page holdfast.ProjectPage
	err := s.view(ctx, "list projects", func(tx store.Tx, _ time.Time) error {
		page = holdfast.ProjectPage{}
		// One row more than a page holds tells whether there is another.
		list, err := gather(ctx, tx, scanProject, projectRows+`WHERE p.name > $1 GROUP BY `+projectColumns+` ORDER BY p.name LIMIT $2`, in.PageToken, size+1)
		if len(list) > size {
			list = list[:size]
			page.NextPageToken = list[size-1].Name
		}
		page.Projects = list
		return err
	})
	return page, err
}

// gather reads every row of a query.
func gather[T any](ctx context.Context, tx store.Tx, scan func(func(...any) error) (T, error), query string, args ...any) (list []T, err error) {
	rs, err := tx.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, fmt.Errorf("read rows: %w", err)
	}
	defer func() { err = errors.Join(err, rs.Close()) }()
	for rs.Next() {
		v, err := scan(rs.Scan)
		if err != nil {
			return nil, fmt.Errorf("read a row: %w", err)
		}
		list = append(list, v)
	}
	if err := rs.Err(); err != nil {
		return nil, fmt.Errorf("read rows: %w", err)
	}
	return list, nil
}

// SetQuotas sets a project's quotas, in one transaction with its shards' caps, so
// that a create sees all of the new quota or all of the old one. The same call
// again changes nothing.
func (s *Service) SetQuotas(ctx context.Context, caller holdfast.Caller, in holdfast.SetQuotas) (holdfast.Project, error) {
	if err := caller.RequireAdmin("setting quotas"); err != nil {
		return holdfast.Project{}, err
	}
	if err := in.Validate(); err != nil {
		return holdfast.Project{}, err
	}
	var out holdfast.Project
	err := s.update(ctx, "set quotas", func(tx store.Tx, now time.Time) error {
		p, err := oneProject(ctx, tx, in.Project)
		if err != nil {
			return err
		}
		shards, was, err := lockShards(ctx, tx, p.ID)
		if err != nil {
			return err
		}
		quotas := in.Quotas.Of(was)
		if quotas != was {
			_, err = tx.ExecContext(ctx, `UPDATE project SET sandboxes = $2, cpu_millis = $3, memory_bytes = $4, updated_at = $5 WHERE id = $1`,
				string(p.ID), quotas.Sandboxes, quotas.CPUMillis, quotas.MemoryBytes, store.Micros(now))
			if err != nil {
				return fmt.Errorf("set quotas of %s: %w", p.ID, err)
			}
		}
		if err := saveShards(ctx, tx, p.ID, share(shards, quotas, 0, holdfast.Usage{})); err != nil {
			return err
		}
		out, err = oneProject(ctx, tx, string(p.ID))
		return err
	})
	return out, err
}
