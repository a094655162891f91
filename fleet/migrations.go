package fleet

import (
	"embed"
	"io/fs"

	"github.com/holdfast-dev/holdfast/delivery/inbox"
	"github.com/holdfast-dev/holdfast/delivery/outbox"
	"github.com/holdfast-dev/holdfast/store"
	"github.com/holdfast-dev/holdfast/store/lineage"
)

//go:embed migrations/*.sql
var migrationFiles embed.FS

// Migrations are all that a fleet's database needs: its own tables, those of its
// inbox and outbox, and its lineage.
func Migrations() []store.Migrations {
	own, err := fs.Sub(migrationFiles, "migrations")
	if err != nil {
		panic(err) // the path is a constant of this file, and valid
	}
	return []store.Migrations{
		{Name: "inbox", FS: inbox.Migrations()},
		{Name: "outbox", FS: outbox.Migrations()},
		{Name: "fleet", FS: own},
		lineage.Migrations(),
	}
}
