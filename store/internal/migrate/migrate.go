// Package migrate brings a database to the schema that its packages ship, on any dialect.
package migrate

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"regexp"

	"github.com/pressly/goose/v3"

	"github.com/holdfast-dev/holdfast/store"
)

// Up applies what is missing of each package's migrations, in the order given. If the database is ahead of any of them
// it applies nothing at all and returns store.ErrNewerSchema.
func Up(ctx context.Context, dialect goose.Dialect, db *sql.DB, all []store.Migrations) error {
	providers := make([]*goose.Provider, len(all))
	seen := make(map[string]bool, len(all))
	for i, m := range all {
		if seen[m.Name] {
			return fmt.Errorf("migrations %q are given twice", m.Name)
		}
		seen[m.Name] = true
		p, err := provider(dialect, db, m)
		if err != nil {
			return fmt.Errorf("migrations %q: %w", m.Name, err)
		}
		providers[i] = p
	}
	for i, p := range providers {
		if err := check(ctx, p, all[i].Name); err != nil {
			return err
		}
	}
	for i, p := range providers {
		if _, err := p.Up(ctx); err != nil {
			return fmt.Errorf("migrate %q: %w", all[i].Name, err)
		}
	}
	return nil
}

func provider(dialect goose.Dialect, db *sql.DB, m store.Migrations) (*goose.Provider, error) {
	// The name becomes part of a table's, which no placeholder can carry.
	if !regexp.MustCompile(`^[a-z][a-z0-9_]{0,40}$`).MatchString(m.Name) {
		return nil, errors.New("the name must be lower-case letters, digits and underscores")
	}
	p, err := goose.NewProvider(dialect, db, m.FS,
		goose.WithTableName(m.Name+"_schema"),
		goose.WithDisableGlobalRegistry(true),
		goose.WithLogger(goose.NopLogger()),
	)
	if errors.Is(err, goose.ErrNoMigrations) {
		return nil, fmt.Errorf("%w: its FS must have the .sql files at its root (use fs.Sub)", err)
	}
	return p, err
}

func check(ctx context.Context, p *goose.Provider, name string) error {
	current, known, err := p.GetVersions(ctx)
	if err != nil {
		return fmt.Errorf("read the schema version of %q: %w", name, err)
	}
	if current > known {
		return fmt.Errorf("%w: %q is at version %d and this program knows %d. "+
			"Run the version that wrote it or a newer one, or restore a backup made before that upgrade",
			store.ErrNewerSchema, name, current, known)
	}
	return nil
}
