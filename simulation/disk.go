package simulation

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"sync"

	"github.com/holdfast-dev/holdfast"
)

// disk remembers what of a host's records was not synced: a loss of power takes it
// back. It is the agent's word which writes those are.
type disk struct {
	mu       sync.Mutex
	unsynced map[string]synced // by the record's file
}

// synced is a record as the disk has it for certain; nil: there is none.
type synced []byte

// around watches the writes of records below a host's directory.
func (d *disk) around(directory string, next func(string, holdfast.InstanceRef, holdfast.InstanceState) error) func(string, holdfast.InstanceRef, holdfast.InstanceState) error {
	return func(when string, ref holdfast.InstanceRef, state holdfast.InstanceState) error {
		path := filepath.Join(directory, "instances", string(ref.Instance), strconv.FormatInt(ref.Incarnation, 10), "record.json")
		if err := d.note(when, path); err != nil {
			return err
		}
		return next(when, ref, state)
	}
}

func (d *disk) note(when, path string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.unsynced == nil {
		d.unsynced = map[string]synced{}
	}
	_, known := d.unsynced[path]
	switch {
	case when == "after":
		delete(d.unsynced, path)
	case when == "before" && !known:
		raw, err := os.ReadFile(path)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		d.unsynced[path] = raw
	}
	return nil
}

// losePower puts back what the disk has for certain.
func (d *disk) losePower() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	var errs []error
	for path, raw := range d.unsynced {
		if raw == nil {
			if err := os.Remove(path); !errors.Is(err, fs.ErrNotExist) {
				errs = append(errs, err)
			}
			continue
		}
		if _, err := os.Stat(path); err == nil { // else it was purged, which no restart undoes here
			errs = append(errs, os.WriteFile(path, raw, 0o600))
		}
	}
	d.unsynced = nil
	return errors.Join(errs...)
}
