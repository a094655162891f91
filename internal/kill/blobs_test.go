package kill

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
)

// named are the queries for what the orchestrator's rows name in the blob store.
// Those of output are JSON.
const (
	namedLayers = "SELECT key FROM layer_use"
	namedLogs   = "SELECT log FROM task WHERE log <> '' UNION ALL SELECT log_key FROM environment_build WHERE log_key <> ''"
	knownOwners = "SELECT id FROM task UNION ALL SELECT id FROM environment_build"
)

// blobs holds the blob store against the rows that name what is in it: all of that is
// there, and of checkpoints nothing else. What a server that died had put there of a
// task's output or a build's log goes with the task or the build, which are known.
func (r *round) blobs(ctx context.Context) (wrong []string, err error) {
	db, err := r.d.open("orchestrator")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	column := func(query string) (all []string, err error) {
		rows, err := db.QueryContext(ctx, query)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", query, err)
		}
		defer func() { err = errors.Join(err, rows.Close()) }()
		for rows.Next() {
			var value string
			if err := rows.Scan(&value); err != nil {
				return nil, err
			}
			all = append(all, value)
		}
		return all, rows.Err()
	}
	layers, err := column(namedLayers)
	logs, logErr := column(namedLogs)
	owners, ownErr := column(knownOwners)
	if err := errors.Join(err, logErr, ownErr); err != nil {
		return nil, err
	}
	needed, known := map[string]bool{}, map[string]bool{}
	for _, key := range append(layers, logKeys(logs)...) {
		needed[key] = true
	}
	for _, id := range owners {
		known[id] = true
	}
	there, err := filesOf(r.d.blobs)
	if err != nil {
		return nil, err
	}
	for _, key := range there {
		kind, rest, _ := strings.Cut(key, "/")
		id, _, _ := strings.Cut(rest, "/")
		if !needed[key] && (kind == "checkpoints" || !known[id]) {
			wrong = append(wrong, "the blob "+key+" is there for nobody")
		}
		delete(needed, key)
	}
	for key := range needed {
		wrong = append(wrong, "the blob "+key+" is needed, and is not there")
	}
	return wrong, nil
}

// logKeys are the keys in columns that name kept output, as JSON or as they are.
func logKeys(columns []string) (keys []string) {
	for _, text := range columns {
		var log struct{ Stdout, Stderr struct{ Key string } }
		if json.Unmarshal([]byte(text), &log) != nil {
			log.Stdout.Key = text
		}
		for _, key := range []string{log.Stdout.Key, log.Stderr.Key} {
			if key != "" {
				keys = append(keys, key)
			}
		}
	}
	return keys
}

// filesOf are the keys in a blob store of files, what is being written apart.
func filesOf(dir string) (keys []string, err error) {
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil // it has just been removed, or there was never any
		case err != nil:
			return err
		case d.IsDir() && d.Name() == ".unfinished":
			return fs.SkipDir
		case !d.Type().IsRegular():
			return nil
		}
		key, err := filepath.Rel(dir, path)
		keys = append(keys, filepath.ToSlash(key))
		return err
	})
	return keys, err
}
