package server

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/delivery/outbox"
	"github.com/holdfast-dev/holdfast/fleet"
	"github.com/holdfast-dev/holdfast/orchestrator"
	"github.com/holdfast-dev/holdfast/store"
	"github.com/holdfast-dev/holdfast/store/lineage"
	"github.com/holdfast-dev/holdfast/store/sqlite"
)

// Recovery is what became of databases that an operator restored (trap T52).
type Recovery struct {
	Databases []RecoveredDatabase    `json:"databases"`
	Unknown   []holdfast.Observation `json:"unknown"` // instances of the fleet that no sandbox has
}

// RecoveredDatabase is one party's.
type RecoveredDatabase struct {
	Party       Role      `json:"party"`
	Cluster     string    `json:"cluster"`
	Epoch       int64     `json:"epoch"`
	RecoveredAt time.Time `json:"recovered_at,omitzero"`
	ForgottenAt time.Time `json:"forgotten_at,omitzero"`
}

// Word is what the operator says.
type Word string

// The words.
const (
	WordRecover Word = "recover" // the databases were restored
	WordForget  Word = "forget"  // what they do not know is nobody's
	WordList    Word = "list"    // nothing: only look
)

// Recover records the operator's word in the databases of a data directory, or of
// a PostgreSQL server, whose replicas may run meanwhile.
func Recover(ctx context.Context, config Config, word Word, now time.Time) (_ Recovery, err error) {
	s := &Server{config: config, databases: map[string]database{}, stop: func() {}}
	defer func() { err = errors.Join(err, s.close()) }()
	dbs, err := s.openRestored(ctx, word)
	if err != nil {
		return Recovery{}, err
	}
	before, err := lineages(ctx, dbs)
	if err != nil {
		return Recovery{}, err
	}
	o, f := before[Orchestrator], before[Fleet]
	if o.Cluster != "" && f.Cluster != "" && o.Cluster != f.Cluster {
		return Recovery{}, fmt.Errorf("the orchestrator's database is cluster %s's and the fleet's is %s's: restore both from one backup", o.Cluster, f.Cluster)
	}
	epoch := int64(0) // a fleet's own follows its orchestrator's
	if _, ok := dbs[Orchestrator]; ok {
		epoch = max(now.Unix(), o.Epoch+1, f.Epoch+1)
	}
	var out Recovery
	for _, party := range []Role{Orchestrator, Fleet} {
		db, ok := dbs[party]
		if !ok {
			continue
		}
		l, err := say(ctx, db, word, now, epoch)
		if err != nil {
			return Recovery{}, err
		}
		out.Databases = append(out.Databases, RecoveredDatabase{Party: party, Cluster: l.Cluster, Epoch: l.Epoch, RecoveredAt: l.RecoveredAt, ForgottenAt: l.ForgottenAt})
	}
	out.Unknown, err = unknown(ctx, dbs)
	return out, err
}

// openRestored opens what there is; a data directory must be at rest, unless it
// is only looked at.
func (s *Server) openRestored(ctx context.Context, word Word) (map[Role]store.DB, error) {
	if !s.config.shared() && word != WordList {
		if _, err := os.Stat(s.config.DataDir); err != nil {
			return nil, fmt.Errorf("there is no data directory %s: name it with --data-dir, or the shared database with --database: %w", s.config.DataDir, err)
		}
		lock, err := sqlite.LockDir(s.config.DataDir)
		if err != nil {
			return nil, err
		}
		s.onClose("data directory", lock.Unlock)
	}
	dbs := map[Role]store.DB{}
	for party, migrations := range map[Role][]store.Migrations{Orchestrator: orchestrator.Migrations(), Fleet: fleet.Migrations()} {
		if !s.config.shared() {
			_, err := os.Stat(filepath.Join(s.config.DataDir, string(party)+".db"))
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err != nil {
				return nil, err
			}
		}
		db, err := s.openDatabase(ctx, party, migrations)
		if err != nil {
			return nil, err
		}
		dbs[party] = db
	}
	if len(dbs) == 0 {
		return nil, fmt.Errorf("there is no database in %s: name its directory with --data-dir, or the shared one with --database", s.config.DataDir)
	}
	return dbs, nil
}

func lineages(ctx context.Context, dbs map[Role]store.DB) (map[Role]lineage.Lineage, error) {
	out := map[Role]lineage.Lineage{}
	for party, db := range dbs {
		err := db.View(ctx, func(tx store.Tx) (err error) {
			out[party], err = lineage.Read(ctx, tx)
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return out, nil
}

func say(ctx context.Context, db store.DB, word Word, now time.Time, epoch int64) (l lineage.Lineage, err error) {
	err = db.Update(ctx, func(tx store.Tx) (err error) {
		switch word {
		case WordRecover:
			l, err = lineage.Recover(ctx, tx, now, epoch)
		case WordForget:
			l, err = lineage.Forget(ctx, tx, now)
		default:
			l, err = lineage.Read(ctx, tx)
		}
		return err
	})
	return l, err
}

// unknown lists what the fleet has and no sandbox does, where both databases are here.
func unknown(ctx context.Context, dbs map[Role]store.DB) ([]holdfast.Observation, error) {
	sandboxes, ok := dbs[Orchestrator]
	if !ok || dbs[Fleet] == nil {
		return nil, nil
	}
	reader, err := fleet.New(fleet.Config{DB: dbs[Fleet], Holder: "recover", // it calls nobody
		Dial:   func(string) holdfast.HostService { return nil },
		SendUp: func(context.Context, outbox.Row) error { return errors.New("recover sends nothing") }})
	if err != nil {
		return nil, err
	}
	var out []holdfast.Observation
	for in := (holdfast.FindInstances{Limit: 1000}); ; {
		page, err := reader.FindInstances(ctx, in)
		if err != nil {
			return nil, err
		}
		found, err := orchestrator.Unrecorded(ctx, sandboxes, page.Instances)
		if err != nil {
			return nil, err
		}
		if out = append(out, found...); page.Next == "" {
			return out, nil
		}
		in.After = holdfast.InstanceID(page.Next)
	}
}
