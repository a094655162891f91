package step

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-dev/holdfast/store"
)

// DB is a party's database: every transaction is a step. Close is left to whoever
// owns the database, which outlives the party.
type DB struct {
	Next  store.DB
	Party string
	Hook  Hook
	Clock func() time.Time // the database's
	Names *Names           // shared with others; nil: none
}

var _ store.DB = (*DB)(nil)

// Update implements store.DB.
func (d *DB) Update(ctx context.Context, fn func(store.Tx) error) error {
	s := d.step(ctx, Update, fn)
	return around(ctx, d.Hook, s, func() error { return d.Next.Update(ctx, fn) })
}

// View implements store.DB.
func (d *DB) View(ctx context.Context, fn func(store.Tx) error) error {
	s := d.step(ctx, View, fn)
	return around(ctx, d.Hook, s, func() error { return d.Next.View(ctx, fn) })
}

// Close does nothing.
func (d *DB) Close() error { return nil }

func (d *DB) step(ctx context.Context, kind Kind, fn func(store.Tx) error) *Step {
	names := d.Names
	if names == nil {
		names = new(Names)
	}
	return &Step{Party: d.Party, Kind: kind, Name: names.caller(), Actor: actor(ctx), Key: d.about(ctx, names, fn)}
}

// about finds out whom a transaction is about, so that steps are told apart by what
// they are and not by who asked first: its function runs until its first statement,
// which is refused. It may, since it touches the database only and may run again.
func (d *DB) about(ctx context.Context, names *Names, fn func(store.Tx) error) string {
	p := &probe{clock: d.Clock, refused: names.refused}
	// The refusal is the purpose.
	_ = fn(p)
	if ctx.Err() != nil {
		return ""
	}
	return p.key
}

// errProbe is what a probe's statements fail with.
var errProbe = errors.New("step: nothing is run while it is found out whom a transaction is about")

// probe is a store.Tx that notes the first statement's arguments.
type probe struct {
	clock   func() time.Time
	refused func() *sql.Row
	once    sync.Once
	key     string
}

func (p *probe) note(args []any) {
	p.once.Do(func() {
		var keys []string
		for _, a := range args {
			text, ok := a.(string)
			if !ok || text == "" || len(text) > 128 || aHolder.MatchString(text) || contains(keys, text) {
				continue
			}
			if keys = append(keys, text); len(keys) == maxKeys {
				break
			}
		}
		p.key = strings.Join(keys, " ")
	})
}

func (p *probe) ExecContext(_ context.Context, _ string, args ...any) (sql.Result, error) {
	p.note(args)
	return nil, errProbe
}

func (p *probe) QueryContext(_ context.Context, _ string, args ...any) (*sql.Rows, error) {
	p.note(args)
	return nil, errProbe
}

func (p *probe) QueryRowContext(_ context.Context, _ string, args ...any) *sql.Row {
	p.note(args)
	return p.refused()
}

func (p *probe) Now(context.Context) (time.Time, error) {
	return p.clock().UTC().Truncate(time.Microsecond), nil
}

func (p *probe) ForUpdate() string { return "" }

// ForShare implements store.Tx.
func (p *probe) ForShare() string { return "" }

// nowhere is a database that cannot be reached.
type nowhere struct{}

func (nowhere) Connect(context.Context) (driver.Conn, error) { return nil, errProbe }
func (nowhere) Driver() driver.Driver                        { return nil }

const module = "github.com/holdfast-dev/holdfast/"

// Names remembers what functions are called. Databases share one; its zero value is
// ready.
type Names struct {
	byCounter sync.Map // of program counters: string
	once      sync.Once
	row       *sql.Row
}

// refused is a row that carries errProbe, for any number of probes. It needs a
// database to make one.
func (n *Names) refused() *sql.Row {
	n.once.Do(func() {
		ctx, cancel := context.WithCancelCause(context.Background())
		cancel(errProbe)
		db := sql.OpenDB(nowhere{})
		defer func() { _ = db.Close() }() // nothing was opened
		n.row = db.QueryRowContext(ctx, "")
	})
	return n.row
}

// caller names the function whose transaction it is: the innermost one of ours that
// is not itself a way to transactions.
func (n *Names) caller() string {
	// To look far up a stack is dear, and the name is near: a few frames at a time.
	var pcs [8]uintptr
	for skip := 4; skip < 36; skip += len(pcs) {
		found := runtime.Callers(skip, pcs[:])
		for _, pc := range pcs[:found] {
			name, known := n.byCounter.Load(pc)
			if !known {
				name = nameAt(pc)
				n.byCounter.Store(pc, name)
			}
			if name != "" {
				return name.(string)
			}
		}
		if found < len(pcs) {
			break
		}
	}
	return "?"
}

// nameAt names the function at a place of the program; "" if it says nothing.
func nameAt(pc uintptr) string {
	frames := runtime.CallersFrames([]uintptr{pc})
	for {
		frame, more := frames.Next()
		if name, ok := strings.CutPrefix(frame.Function, module); ok && !strings.HasPrefix(name, "simulation/step.") {
			if name = plain(name); !isWay(name) {
				return name
			}
		}
		if !more {
			return ""
		}
	}
}

// plain takes receivers, closures and type parameters off a function's name.
func plain(name string) string {
	name, _, _ = strings.Cut(name, "[")
	pkg, rest, _ := strings.Cut(name, ".")
	parts := strings.Split(rest, ".")
	for _, part := range parts {
		if !strings.HasPrefix(part, "(") {
			return pkg + "." + part
		}
	}
	return name
}

func isWay(name string) bool {
	_, fn, _ := strings.Cut(name, ".")
	switch fn {
	case "update", "view", "Update", "View", "settle", "New":
		return name != "orchestrator.New"
	}
	return false
}
