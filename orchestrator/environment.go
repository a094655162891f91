package orchestrator

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/store"
)

// environmentColumns read an environment with its newest READY build.
const environmentColumns = `id, project, name, version, recipe, created_at, updated_at, deleted_at,
	COALESCE((SELECT b.id FROM environment_build b WHERE b.environment = environment.id AND b.state = 'READY'
		ORDER BY b.version DESC, b.id DESC LIMIT 1), '')`

func scanEnvironment(scan func(...any) error) (holdfast.Environment, error) {
	var e holdfast.Environment
	var recipe string
	var created, updated, deleted int64
	if err := scan(&e.ID, &e.Project, &e.Name, &e.Version, &recipe, &created, &updated, &deleted, &e.Build); err != nil {
		return e, err
	}
	e.CreatedAt, e.UpdatedAt, e.DeletedAt = store.FromMicros(created), store.FromMicros(updated), store.FromMicros(deleted)
	if err := json.Unmarshal([]byte(recipe), &e.Recipe); err != nil {
		return e, fmt.Errorf("environment %s: its recipe cannot be read: %w", e.ID, err)
	}
	return e, nil
}

// oneEnvironment finds a project's environment by name; lock is the transaction's, or "".
func oneEnvironment(ctx context.Context, tx store.Tx, project holdfast.ProjectID, name, lock string) (holdfast.Environment, bool, error) {
	e, err := scanEnvironment(tx.QueryRowContext(ctx, `SELECT `+environmentColumns+` FROM environment WHERE project = $1 AND name = $2`+lock,
		string(project), name).Scan)
	if errors.Is(err, sql.ErrNoRows) {
		return e, false, nil
	}
	if err != nil {
		return e, false, fmt.Errorf("read environment %s: %w", name, err)
	}
	return e, true, nil
}

func noEnvironment(name string) *holdfast.Error {
	return holdfast.E(holdfast.NotFound, holdfast.ReasonUnknown, "no environment %s in this project", name).With("environment", name)
}

// asOf makes of an environment what one of its versions is; 0 is the newest.
func asOf(ctx context.Context, tx store.Tx, e *holdfast.Environment, version int64) error {
	if version == 0 || version == e.Version {
		if version == 0 {
			return nil
		}
	} else {
		var recipe string
		err := tx.QueryRowContext(ctx, `SELECT recipe FROM environment_version WHERE environment = $1 AND version = $2`, string(e.ID), version).Scan(&recipe)
		if errors.Is(err, sql.ErrNoRows) {
			return noEnvironment(fmt.Sprintf("%s@%d", e.Name, version))
		}
		if err != nil {
			return fmt.Errorf("read version %d of environment %s: %w", version, e.ID, err)
		}
		e.Recipe = holdfast.Recipe{}
		if err := json.Unmarshal([]byte(recipe), &e.Recipe); err != nil {
			return fmt.Errorf("read version %d of environment %s: %w", version, e.ID, err)
		}
		e.Version = version
	}
	e.Build = ""
	err := tx.QueryRowContext(ctx, `SELECT id FROM environment_build WHERE environment = $1 AND version = $2 AND state = 'READY'
		ORDER BY id DESC LIMIT 1`, string(e.ID), version).Scan(&e.Build)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return fmt.Errorf("read the build of version %d of environment %s: %w", version, e.ID, err)
	}
	return nil
}

// CreateEnvironment makes an environment of a name, or the next version of it where
// the recipe is another one; the same recipe again is what it was (contract: A3). One
// that was deleted is there again, under the next version.
func (s *Service) CreateEnvironment(ctx context.Context, caller holdfast.Caller, in holdfast.CreateEnvironment) (holdfast.Environment, error) {
	if err := in.Validate(); err != nil {
		return holdfast.Environment{}, err
	}
	if _, err := s.config.Image(in.Recipe.Base); err != nil {
		return holdfast.Environment{}, err
	}
	recipe, err := json.Marshal(in.Recipe)
	if err != nil {
		return holdfast.Environment{}, fmt.Errorf("create environment %s: %w", in.Name, err)
	}
	id := holdfast.EnvironmentID(s.config.IDs.New(holdfast.PrefixEnvironment))
	var out holdfast.Environment
	err = s.update(ctx, "create environment", func(tx store.Tx, now time.Time) error {
		n, err := affected(tx.ExecContext(ctx, `INSERT INTO environment (id, project, name, version, recipe, created_at, updated_at)
			VALUES ($1, $2, $3, 1, $4, $5, $5) ON CONFLICT DO NOTHING`, string(id), string(caller.Project), in.Name, string(recipe), store.Micros(now)))
		if err != nil {
			return fmt.Errorf("create environment %s: %w", in.Name, err)
		}
		e, found, err := oneEnvironment(ctx, tx, caller.Project, in.Name, tx.ForUpdate())
		switch {
		case err != nil:
			return err
		case !found:
			return fmt.Errorf("create environment %s: in conflict with a row that is not there", in.Name)
		}
		was, err := json.Marshal(e.Recipe)
		if err != nil {
			return fmt.Errorf("create environment %s: %w", in.Name, err)
		}
		if n == 0 && string(was) == string(recipe) && e.DeletedAt.IsZero() {
			out = e
			return nil
		}
		if n == 0 {
			e.Version++
		}
		e.Recipe, e.UpdatedAt, e.DeletedAt = in.Recipe, now, time.Time{}
		out = e
		return saveVersion(ctx, tx, now, e, string(recipe))
	})
	return out, err
}

// saveVersion writes the newest version of a locked environment.
func saveVersion(ctx context.Context, tx store.Tx, now time.Time, e holdfast.Environment, recipe string) error {
	_, err := tx.ExecContext(ctx, `UPDATE environment SET version = $2, recipe = $3, updated_at = $4, deleted_at = 0 WHERE id = $1`,
		string(e.ID), e.Version, recipe, store.Micros(now))
	if err == nil {
		_, err = tx.ExecContext(ctx, `INSERT INTO environment_version (environment, version, recipe, created_at) VALUES ($1, $2, $3, $4)`,
			string(e.ID), e.Version, recipe, store.Micros(now))
	}
	if err != nil {
		return fmt.Errorf("save version %d of environment %s: %w", e.Version, e.ID, err)
	}
	return nil
}

// GetEnvironment observes one by name, or name@version; what exists without a recipe
// is shown as a recipe of its base alone.
func (s *Service) GetEnvironment(ctx context.Context, caller holdfast.Caller, reference string) (holdfast.Environment, error) {
	name, version, named := holdfast.EnvironmentName(reference)
	if !named {
		if _, err := s.config.Image(reference); err != nil {
			return holdfast.Environment{}, holdfast.CheckEnvironmentName("name", reference)
		}
		return holdfast.Environment{Project: caller.Project, Name: reference, Recipe: holdfast.Recipe{Base: reference}}, nil
	}
	var out holdfast.Environment
	err := s.view(ctx, "get environment", func(tx store.Tx, _ time.Time) error {
		e, found, err := oneEnvironment(ctx, tx, caller.Project, name, "")
		if err == nil && !found {
			err = noEnvironment(name)
		}
		if err != nil {
			return err
		}
		out = e
		return asOf(ctx, tx, &out, version)
	})
	return out, err
}

// ListEnvironments pages by name; deleted ones are left out.
func (s *Service) ListEnvironments(ctx context.Context, caller holdfast.Caller, in holdfast.ListEnvironments) (holdfast.EnvironmentPage, error) {
	if err := in.Validate(); err != nil {
		return holdfast.EnvironmentPage{}, err
	}
	size := in.PageSize
	if size == 0 {
		size = holdfast.DefaultPageSize
	}
	var page holdfast.EnvironmentPage
	err := s.view(ctx, "list environments", func(tx store.Tx, _ time.Time) error {
		page = holdfast.EnvironmentPage{}
		list, err := gather(ctx, tx, scanEnvironment, `SELECT `+environmentColumns+` FROM environment
			WHERE project = $1 AND name > $2 AND deleted_at = 0 ORDER BY name LIMIT $3`, string(caller.Project), in.PageToken, size+1)
		if len(list) > size {
			list = list[:size]
			page.NextPageToken = list[size-1].Name
		}
		page.Environments = list
		return err
	})
	return page, err
}

// DeleteEnvironment ends a name: nothing new is made from it, what is being built is
// given up, and what was made stays. Deleting it again is success.
func (s *Service) DeleteEnvironment(ctx context.Context, caller holdfast.Caller, name string) (holdfast.Environment, error) {
	if _, version, named := holdfast.EnvironmentName(name); !named || version != 0 {
		return holdfast.Environment{}, errors.Join(holdfast.CheckEnvironmentName("name", name), wholeName(version, name))
	}
	var out holdfast.Environment
	err := s.update(ctx, "delete environment", func(tx store.Tx, _ time.Time) error {
		e, found, err := oneEnvironment(ctx, tx, caller.Project, name, tx.ForUpdate())
		if err == nil && !found {
			err = noEnvironment(name)
		}
		if err != nil || !e.DeletedAt.IsZero() {
			out = e
			return err
		}
		now, err := tx.Now(ctx) // once it is locked (trap T41)
		if err != nil {
			return err
		}
		e.DeletedAt, e.UpdatedAt = now, now
		out = e
		if _, err := tx.ExecContext(ctx, `UPDATE environment SET deleted_at = $2, updated_at = $2 WHERE id = $1`, string(e.ID), store.Micros(now)); err != nil {
			return fmt.Errorf("delete environment %s: %w", e.ID, err)
		}
		if err := s.cancelBuilds(ctx, tx.(*unit), e); err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, `UPDATE environment_build SET kept = FALSE WHERE environment = $1`, string(e.ID)); err != nil {
			return fmt.Errorf("delete environment %s: %w", e.ID, err)
		}
		return nil
	})
	return out, err
}

func wholeName(version int64, name string) error {
	if version == 0 {
		return nil
	}
	return holdfast.E(holdfast.InvalidArgument, holdfast.ReasonBadField,
		"name %q names one version: an environment is deleted as a whole", name).With("field", "name")
}
