package operation

import (
	"embed"
	"io/fs"
)

//go:embed migrations/*.sql
var migrationFiles embed.FS

// Migrations is the table `operation` as goose migrations, the same text for SQLite and PostgreSQL. Give it a version
// table of its own, such as operation_schema.
func Migrations() fs.FS {
	sub, err := fs.Sub(migrationFiles, "migrations")
	if err != nil {
		panic(err) // the path is a constant of this file, and valid
	}
	return sub
}
