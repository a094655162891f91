package storetest

import (
	"fmt"
	"testing"

	"github.com/holdfast-dev/holdfast/store"
)

// RunDurable is the part of the suite for databases that outlive their handle. The given function names one new
// database, and what it returns opens that one, as often as it is called; the caller closes it.
func RunDurable(t *testing.T, create func(t *testing.T) (open func() (store.DB, error))) {
	t.Run("WhatUpdateReturnedIsThereAfterReopening", func(t *testing.T) {
		open := create(t)
		for n := range int64(3) {
			db, err := open()
			if err != nil {
				t.Fatal(err)
			}
			for before := range n {
				want(t, db, fmt.Sprint(before), before)
			}
			put(t, db, fmt.Sprint(n), n)
			if err := db.Close(); err != nil {
				t.Fatal(err)
			}
		}
	})
	t.Run("TwoHandlesOnOneDatabaseAgree", func(t *testing.T) {
		open := create(t)
		a, err := open()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { closeDB(t, a) })
		b, err := open()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { closeDB(t, b) })
		handles := []store.DB{a, b}
		put(t, a, "n", 0)
		errs := together(10, func(i int) error {
			return handles[i%2].Update(t.Context(), func(tx store.Tx) error {
				_, err := tx.ExecContext(t.Context(), "UPDATE thing SET v = v + 1 WHERE k = $1", "n")
				return err
			})
		})
		for _, err := range errs {
			if err != nil {
				t.Error(err)
			}
		}
		want(t, a, "n", 10)
		want(t, b, "n", 10)
	})
}

func closeDB(t *testing.T, db store.DB) {
	t.Helper()
	if err := db.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
}
