package hostagent

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/holdfast-dev/holdfast"
)

// copyRecord is what this host durably knows of one checkpoint.
type copyRecord struct {
	Checkpoint holdfast.CheckpointID `json:"checkpoint"`
	Ref        holdfast.InstanceRef  `json:"ref"`
	State      holdfast.CopyState    `json:"state"`
	Claim      int64                 `json:"claim"` // the highest that asked
	// Began is the claim that began the copy which is under way, or was finished; its
	// key ends in it. A copy that its process did not finish is begun anew by another.
	Began     int64             `json:"began"`
	Key       string            `json:"key,omitempty"`
	Layers    []holdfast.Layer  `json:"layers,omitempty"` // PRESENT
	Added     int64             `json:"added,omitempty"`
	Failure   *holdfast.Failure `json:"failure,omitempty"`
	MintedAt  time.Time         `json:"minted_at"`
	StartedAt time.Time         `json:"started_at"` // when the first level came: its deadline is never pushed out (trap T31)
	EndedAt   time.Time         `json:"ended_at,omitzero"`
}

// final reports that nothing will happen to the copy but that it is forgotten.
func (r copyRecord) final() bool { return r.State != holdfast.CopyCopying }

// begin is the record of a copy that a claim begins.
func (r copyRecord) begin(claim int64) copyRecord {
	r.State, r.Claim, r.Began = holdfast.CopyCopying, claim, claim
	r.Key = fmt.Sprintf("checkpoints/%s/%d", r.Checkpoint, claim)
	return r
}

// end is the record in one of the states that are for ever.
func (r copyRecord) end(state holdfast.CopyState, failure *holdfast.Failure, now time.Time) copyRecord {
	r.State, r.Failure, r.EndedAt = state, failure, now
	if state != holdfast.CopyPresent {
		r.Key, r.Layers, r.Added = "", nil, 0
	}
	return r
}

// copyFiles keeps checkpoints: DIRECTORY/checkpoints/CHECKPOINT, with the record, and
// while one is copied its part.
type copyFiles struct {
	root string
	hook func(point string) error
}

func (s copyFiles) directory(id holdfast.CheckpointID) string {
	return filepath.Join(s.root, string(id))
}

func (s copyFiles) part(id holdfast.CheckpointID) string {
	return filepath.Join(s.directory(id), "part")
}

// save makes a record durable; an error leaves either record.
func (s copyFiles) save(r copyRecord) error {
	raw, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("encode the record: %w", err)
	}
	if err := s.hook("before copy " + string(r.State)); err != nil {
		return err
	}
	dir := s.directory(r.Checkpoint)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	if err := replaceFile(filepath.Join(dir, recordFile), raw, true); err != nil {
		return err
	}
	if err := errors.Join(syncDirectory(s.root), syncDirectory(filepath.Dir(s.root))); err != nil {
		return err
	}
	return s.hook("after copy " + string(r.State))
}

// parts lists all of a checkpoint's files but its record.
func (s copyFiles) parts(id holdfast.CheckpointID) ([]string, error) {
	entries, err := os.ReadDir(s.directory(id))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var paths []string
	for _, e := range entries {
		if e.Name() != recordFile {
			paths = append(paths, filepath.Join(s.directory(id), e.Name()))
		}
	}
	return paths, err
}

// clear removes them.
func (s copyFiles) clear(id holdfast.CheckpointID) error {
	paths, err := s.parts(id)
	for _, path := range paths {
		err = errors.Join(err, os.RemoveAll(path))
	}
	return err
}

// purge forgets a checkpoint.
func (s copyFiles) purge(id holdfast.CheckpointID) error { return os.RemoveAll(s.directory(id)) }

// load reads every record and removes the parts: they are of no use to another
// process. A directory without a record is one whose first write did not end. A
// record that cannot be read stands in nobody's way but its own: it is FAILED.
func (s copyFiles) load(now time.Time) (all []copyRecord, damaged []error, err error) {
	entries, err := os.ReadDir(s.root)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, err
	}
	for _, e := range entries {
		id := holdfast.CheckpointID(e.Name())
		if err := holdfast.CheckID("checkpoint", holdfast.PrefixCheckpoint, string(id)); err != nil {
			return nil, nil, fmt.Errorf("%s: %q is no checkpoint: move away what does not belong here", s.root, e.Name())
		}
		if err := s.clear(id); err != nil {
			return nil, nil, err
		}
		raw, err := os.ReadFile(filepath.Join(s.directory(id), recordFile))
		if errors.Is(err, fs.ErrNotExist) {
			if err := s.purge(id); err != nil {
				return nil, nil, err
			}
			continue
		}
		if err != nil {
			return nil, nil, err
		}
		var r copyRecord
		damage := json.Unmarshal(raw, &r)
		if damage == nil && (r.Checkpoint != id || r.State == "") {
			damage = fmt.Errorf("it is about %q", r.Checkpoint)
		}
		if damage != nil {
			damaged = append(damaged, fmt.Errorf("the record of checkpoint %s: %w", id, damage))
			r = copyRecord{Checkpoint: id, StartedAt: now}.end(holdfast.CopyFailed, &holdfast.Failure{
				Reason: holdfast.ReasonCheckpointFailed, Message: "the host's record of it was damaged"}, now)
			if err := s.save(r); err != nil {
				return nil, nil, err
			}
		}
		all = append(all, r)
	}
	return all, damaged, nil
}
