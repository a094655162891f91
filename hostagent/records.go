package hostagent

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/holdfast-dev/holdfast"
)

// records is where an agent keeps what it knows of incarnations.
type records interface {
	// save puts a record where a later process finds it; synced, also a later boot
	// of the machine. An error leaves either record.
	save(r record, sync bool) error
	// load reads every record at a start.
	load(now time.Time, bootID string) ([]loaded, error)
	// knowsAll reports whether a boot that was placed then, and of which nothing is
	// recorded, has never been begun here.
	knowsAll(placed time.Time) bool
}

// places is where an incarnation's own files are: DIRECTORY/instances/INSTANCE/INCARNATION.
type places struct {
	root string // DIRECTORY/instances
}

// recordFiles keeps one file per incarnation, beside its own files.
type recordFiles struct {
	places
	hook   func(point string) error
	around func(when string, ref holdfast.InstanceRef, state holdfast.InstanceState) error
}

const recordFile = "record.json"

func (s recordFiles) knowsAll(time.Time) bool { return true }

func (s places) directory(ref holdfast.InstanceRef) string {
	return filepath.Join(s.root, string(ref.Instance), strconv.FormatInt(ref.Incarnation, 10))
}

// spool is where the guest's output goes.
func (s places) spool(ref holdfast.InstanceRef) string {
	return filepath.Join(s.directory(ref), "spool")
}

func (s recordFiles) save(r record, sync bool) error {
	raw, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("encode the record: %w", err)
	}
	if err := errors.Join(s.hook("before save "+string(r.State)), s.around("before", r.Ref, r.State)); err != nil {
		return err
	}
	dir := s.directory(r.Ref)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	// The directories may be as new as the record; where they are not, this costs
	// nothing. They are there by now, so they need not wait for the file, nor it for them.
	above := make(chan error, 1)
	if sync {
		go func() { above <- errors.Join(syncDirectory(filepath.Dir(dir)), syncDirectory(s.root)) }()
	} else {
		above <- nil
	}
	err = replaceFile(filepath.Join(dir, recordFile), raw, sync)
	if err = errors.Join(err, <-above); err != nil {
		return err
	}
	when := "after"
	if !sync {
		when = "written"
	}
	return errors.Join(s.hook("after save "+string(r.State)), s.around(when, r.Ref, r.State))
}

// outlives reports whether a record must survive a crash of the machine, and not
// only of the process. A reboot ends what was started and knows nothing of what
// was not, so only that a start may have happened, and how it ended, must.
// Where a suspended instance survives its host, all of it must.
func outlives(before, after record, survivesHost bool) bool {
	return survivesHost || after.Started && !before.Started || after.Removing || after.Ending != nil || after.final()
}

// empty removes all of an incarnation's files but its record.
func (s places) empty(ref holdfast.InstanceRef) error {
	dir := s.directory(ref)
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var failed []error
	for _, e := range entries {
		if e.Name() != recordFile {
			failed = append(failed, os.RemoveAll(filepath.Join(dir, e.Name())))
		}
	}
	return errors.Join(append(failed, err)...)
}

// purge forgets an incarnation: its record too.
func (s places) purge(ref holdfast.InstanceRef) error {
	if err := os.RemoveAll(s.directory(ref)); err != nil {
		return err
	}
	parent := filepath.Join(s.root, string(ref.Instance))
	entries, err := os.ReadDir(parent)
	if err == nil && len(entries) == 0 {
		err = os.Remove(parent)
	}
	return err
}

// loaded is one record read at a start. Damaged says that it was rebuilt.
type loaded struct {
	record  record
	damaged error
}

// load reads every record. One that cannot be read is never taken for "never
// seen", which would boot it twice: it is kept aside, and one that says "may
// have started" stands in its place.
func (s recordFiles) load(now time.Time, bootID string) ([]loaded, error) {
	if err := os.MkdirAll(s.root, 0o700); err != nil {
		return nil, err
	}
	instances, err := os.ReadDir(s.root)
	if err != nil {
		return nil, err
	}
	var all []loaded
	for _, instance := range instances {
		boots, err := os.ReadDir(filepath.Join(s.root, instance.Name()))
		if err != nil {
			return nil, err
		}
		for _, boot := range boots {
			number, err := strconv.ParseInt(boot.Name(), 10, 64)
			if err != nil || number < 1 {
				return nil, fmt.Errorf("%s: %q is no incarnation: move away what does not belong here", filepath.Join(s.root, instance.Name()), boot.Name())
			}
			one, ok, err := s.loadOne(holdfast.InstanceRef{Instance: holdfast.InstanceID(instance.Name()), Incarnation: number}, now, bootID)
			if err != nil {
				return nil, err
			}
			if ok {
				all = append(all, one)
			}
		}
	}
	return all, nil
}

func (s recordFiles) loadOne(ref holdfast.InstanceRef, now time.Time, bootID string) (loaded, bool, error) {
	dir := s.directory(ref)
	path := filepath.Join(dir, recordFile)
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		if err := removeIfThere(path + ".new"); err != nil {
			return loaded{}, false, err
		}
		// Nothing but a directory: the first write did not end, so nothing was
		// taken, and nothing of it was made.
		if err := os.Remove(dir); err == nil {
			return loaded{}, false, nil
		}
		err = errors.New("the record is missing, the files are there")
		return s.rebuild(ref, "", now, bootID, err)
	}
	if err != nil {
		return loaded{}, false, err
	}
	var r record
	damage := json.Unmarshal(raw, &r)
	if damage == nil && (r.Ref != ref || r.State == "") {
		damage = fmt.Errorf("it is about %s/%d", r.Ref.Instance, r.Ref.Incarnation)
	}
	if damage == nil {
		return loaded{record: r}, true, nil
	}
	aside := fmt.Sprintf("%s.damaged-%d", path, now.UnixNano())
	if err := os.Link(path, aside); err != nil {
		return loaded{}, false, fmt.Errorf("keep the damaged record aside: %w", err)
	}
	return s.rebuild(ref, aside, now, bootID, damage)
}

// rebuild writes the cautious record of an incarnation whose own cannot be read.
func (s recordFiles) rebuild(ref holdfast.InstanceRef, aside string, now time.Time, bootID string, damage error) (loaded, bool, error) {
	r := record{
		Ref: ref, State: holdfast.InstanceBooting, CreatedAt: now,
		Started: true, StartedAt: now, BootID: bootID, Quarantine: aside,
	}
	if err := s.save(r, true); err != nil {
		return loaded{}, false, fmt.Errorf("replace the damaged record of %s/%d: %w", ref.Instance, ref.Incarnation, err)
	}
	return loaded{record: r, damaged: damage}, true, nil
}
