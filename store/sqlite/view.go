package sqlite

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"

	"github.com/holdfast-dev/holdfast/store"
)

// View implements store.DB. On a file, views run beside the writer; a context that ends interrupts a running statement.
func (db *DB) View(ctx context.Context, fn func(store.Tx) error) (err error) {
	if err := db.enter(); err != nil {
		return err
	}
	defer db.views.Done()
	if db.gate != nil {
		select {
		case db.gate <- struct{}{}:
			defer func() { <-db.gate }()
		case <-ctx.Done():
			return fmt.Errorf("view: %w", ended(ctx))
		}
	}
	reader, err := db.readers.Conn(ctx)
	if err != nil {
		return fmt.Errorf("view: %w", err)
	}
	t := &tx{ctx: ctx, conn: reader, clock: db.cfg.Clock, interruptible: db.gate == nil}
	// Deferred, so that a panic or Goexit of fn gives the connection back as well.
	defer func() {
		err = t.end(err)
		if cleanup := release(reader); err == nil && cleanup != nil {
			err = fmt.Errorf("view: %w", cleanup)
		}
	}()
	if err := raw(reader, func(c *conn) error { return c.exec("BEGIN") }); err != nil {
		return fmt.Errorf("begin view: %w", err)
	}
	return fn(t)
}

// release ends a reader's transaction and gives it back to the pool, or gives it up if it cannot end it.
func release(reader *sql.Conn) error {
	var settled error
	rolledBack := raw(reader, func(c *conn) error {
		settled = c.settle()
		if err := c.exec("ROLLBACK"); err != nil {
			return errors.Join(driver.ErrBadConn, err)
		}
		return nil
	})
	return errors.Join(settled, rolledBack, ignoreBad(reader.Close()))
}
