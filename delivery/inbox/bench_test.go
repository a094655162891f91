package inbox_test

import (
	"fmt"
	"testing"

	"github.com/holdfast-dev/holdfast/delivery/inbox"
)

// BenchmarkStatements compares, inside one transaction, what a delivery costs beside
// a bare insert of the same row, and what a repeat costs by Record and by Seen.
func BenchmarkStatements(b *testing.B) {
	db := open(b)
	d := inbox.Delivery{Source: "in/1", Kind: "instance.ready", ReceivedAt: noon, Body: []byte(`{"instance":"in-1","incarnation":1}`)}
	run := func(name string, fn func(inbox.Tx, int) error) {
		b.Run(name, func(b *testing.B) {
			tx, err := db.BeginTx(b.Context(), nil)
			if err != nil {
				b.Fatal(err)
			}
			for i := 0; b.Loop(); i++ {
				if err := fn(tx, i); err != nil {
					b.Fatal(err)
				}
			}
			if err := tx.Rollback(); err != nil {
				b.Fatal(err)
			}
		})
	}
	run("bare insert", func(tx inbox.Tx, i int) error {
		_, err := tx.ExecContext(b.Context(), `INSERT INTO delivery VALUES ($1, $2, $3, $4, '', '')`,
			d.Source, fmt.Sprintf("%010d", i), d.Kind, noon.UnixMicro())
		return err
	})
	run("record", func(tx inbox.Tx, i int) error {
		d.ID = fmt.Sprintf("%010d", i)
		_, err := inbox.Record(b.Context(), tx, d)
		return err
	})
	run("record a repeat", func(tx inbox.Tx, _ int) error {
		d.ID = "same"
		_, err := inbox.Record(b.Context(), tx, d)
		return err
	})
	run("seen a repeat", func(tx inbox.Tx, _ int) error {
		_, err := inbox.Seen(b.Context(), tx, d.Source, "same")
		return err
	})
}
