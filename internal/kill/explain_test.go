package kill

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/holdfast-dev/holdfast/internal/testenv"
)

// explain logs what is known of each instance of which something was left: its
// records at hosts, its rows, and the logs' lines.
func (r *round) explain() {
	r.t.Helper()
	told := map[string]bool{"": true}
	for _, line := range testenv.TakeCensus(r.t, r.d.dirs...).Difference(testenv.Census{}) {
		if instance := instanceID.FindString(line); !told[instance] {
			told[instance] = true
			r.explainOne(instance)
		}
	}
}

func (r *round) explainOne(instance string) {
	r.t.Helper()
	for party, query := range map[string]string{
		"fleet":        "SELECT * FROM instance WHERE id = '" + instance + "'",
		"orchestrator": "SELECT * FROM operation WHERE resource_id = (SELECT id FROM sandbox WHERE instance = '" + instance + "') ORDER BY id",
	} {
		text, err := r.dump(party, query)
		r.t.Logf("%s of %s:\n%s%v", party, instance, text, err)
	}
	for _, s := range r.d.servers {
		records, err := filepath.Glob(filepath.Join(s.DataDir, "host", "instances", instance, "*", "record.json"))
		if err != nil {
			r.t.Error(err)
		}
		for _, path := range records {
			raw, err := os.ReadFile(path)
			r.t.Logf("%s: %s %v", path, raw, err)
		}
		log, err := os.ReadFile(s.LogPath())
		if err != nil {
			r.t.Error(err)
		}
		for line := range strings.Lines(string(log)) {
			if strings.Contains(line, instance) {
				r.t.Logf("%s: %s", s.Name, line)
			}
		}
	}
}

// dump is what a query finds, a line per row. PostgreSQL is gone by then.
func (r *round) dump(party, query string) (text string, err error) {
	if r.d.database != "" {
		return "", nil
	}
	db, err := r.d.open(party)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	rows, err := db.QueryContext(context.Background(), query)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	names, err := rows.Columns()
	if err != nil {
		return "", err
	}
	for rows.Next() {
		cells := make([]any, len(names))
		for i := range cells {
			cells[i] = new(sql.NullString)
		}
		if err := rows.Scan(cells...); err != nil {
			return "", err
		}
		for i, cell := range cells {
			if value := cell.(*sql.NullString).String; value != "" && value != "0" {
				text += fmt.Sprintf("%s=%s ", names[i], value)
			}
		}
		text += "\n"
	}
	return text, rows.Err()
}
