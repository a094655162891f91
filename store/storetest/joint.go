package storetest

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/store"
)

// JointDB is a database that runs joint statements too.
type JointDB interface {
	store.DB
	store.Joiner
}

// RunJoint is the part of the suite for dialects that run joint statements.
func RunJoint(t *testing.T, open func(t *testing.T) JointDB) {
	for _, tc := range []struct {
		name string
		test func(t *testing.T, db JointDB)
	}{
		{"EachIsToldOfItsOwnRow", testJointRows},
		{"WhatWasToldIsThere", testJointDurable},
		{"WhatFailsIsDoneForNobody", testJointFailure},
		{"OneOfTwoEqualKeysWins", testJointEqualKeys},
		{"CountersAreNotLost", testJointCounter},
		{"ContextEndedBefore", testJointContext},
		{"WrongColumnsAreAnError", testJointColumns},
		{"ClosedIsRefused", testJointClosed},
	} {
		t.Run(tc.name, func(t *testing.T) { tc.test(t, open(t)) })
	}
}

// putJointly puts things, as far as they are wanted.
func putJointly() *store.Joint {
	return &store.Joint{Columns: "k text, v bigint, wanted boolean", Query: `, made AS (
		INSERT INTO thing (k, v) SELECT k, v FROM given WHERE wanted ON CONFLICT DO NOTHING RETURNING k)
		SELECT MIN(g.position), 1::bigint, MIN(now) FROM given g JOIN made USING (k), clock GROUP BY k`}
}

func testJointRows(t *testing.T, db JointDB) {
	j := putJointly()
	before := time.Now().Add(-time.Minute)
	for round := range 10 {
		key := func(i int) string { return fmt.Sprintf("%d/%d", round, i) }
		errs := together(200, func(i int) error {
			told, err := db.Join(t.Context(), j, key(i), int64(i), i%3 != 0)
			if err == nil && told.Did != min(int64(i%3), 1) {
				err = fmt.Errorf("%s: it did %d", key(i), told.Did)
			}
			if err == nil && told.Did != 0 && (told.At.Before(before) || told.At.After(time.Now().Add(time.Minute))) {
				err = fmt.Errorf("%s: at %v", key(i), told.At)
			}
			return err
		})
		for i, err := range errs {
			if err != nil {
				t.Fatal(err)
			}
			if i%3 == 0 {
				want(t, db, key(i), -1)
				continue
			}
			want(t, db, key(i), int64(i))
		}
	}
}

func testJointDurable(t *testing.T, db JointDB) {
	j := putJointly()
	for n := range int64(20) {
		k := fmt.Sprint(n)
		if told, err := db.Join(t.Context(), j, k, n, true); err != nil || told.Did != 1 {
			t.Fatalf("Join = %+v, %v", told, err)
		}
		want(t, db, k, n)
	}
}

// A violation of one, or a division by zero that the statement itself asks for, is no error, and nothing stays.
func testJointFailure(t *testing.T, db JointDB) {
	put(t, db, "there", 1)
	checked := &store.Joint{Columns: "k text", Query: `, made AS (INSERT INTO thing (k, v) SELECT k, 1 FROM given ON CONFLICT DO NOTHING RETURNING k)
		SELECT position, 1 / CASE WHEN (SELECT COUNT(*) FROM made) = (SELECT COUNT(*) FROM given) THEN 1 ELSE 0 END::bigint, now FROM given, clock`}
	if told, err := db.Join(t.Context(), checked, "there"); err != nil || told != (store.Told{}) {
		t.Errorf("Join = %+v, %v; want that nothing was done", told, err)
	}
	late := &store.Joint{Columns: "k text", Query: " SELECT position, 1 / (2 - n)::bigint, now FROM given, clock, generate_series(1, 2) n"}
	if told, err := db.Join(t.Context(), late, "k"); err != nil || told != (store.Told{}) {
		t.Errorf("of a statement that fails after its first row: %+v, %v", told, err)
	}
	j := putJointly()
	for round := range 10 {
		var told [24]store.Told
		errs := together(len(told), func(i int) (err error) {
			v := int64(i)
			if i == 5 {
				v = -1 // a thing is never negative
			}
			told[i], err = db.Join(t.Context(), j, fmt.Sprintf("%d/%d", round, i), v, true)
			return err
		})
		for i, err := range errs {
			v := int64(-1)
			if told[i].Did != 0 {
				v = int64(i)
			}
			if err != nil || i == 5 && told[i].Did != 0 {
				t.Errorf("%d was told %+v, %v", i, told[i], err)
			}
			want(t, db, fmt.Sprintf("%d/%d", round, i), v)
		}
	}
	if told, err := db.Join(t.Context(), &store.Joint{Columns: "k text", Query: "SELEKT"}, "k"); err != nil || told.Did != 0 {
		t.Errorf("of a statement that makes no sense: %+v, %v", told, err)
	}
}

func testJointEqualKeys(t *testing.T, db JointDB) {
	j := putJointly()
	for round := range 20 {
		var won atomic.Int64
		for _, err := range together(16, func(i int) error {
			told, err := db.Join(t.Context(), j, fmt.Sprint("key", round), int64(i), true)
			won.Add(told.Did)
			return err
		}) {
			if err != nil {
				t.Fatal(err)
			}
		}
		if won.Load() != 1 {
			t.Errorf("%d have one key", won.Load())
		}
	}
}

func testJointCounter(t *testing.T, db JointDB) {
	put(t, db, "n", 0)
	j := &store.Joint{Columns: "k text", Query: `, added AS (UPDATE thing SET v = v + g.n FROM (SELECT k, COUNT(*) AS n FROM given GROUP BY k) g
		WHERE thing.k = g.k RETURNING thing.k) SELECT g.position, 1::bigint, now FROM given g JOIN added USING (k), clock`}
	var done atomic.Int64
	for _, err := range together(100, func(int) error {
		told, err := db.Join(t.Context(), j, "n")
		done.Add(told.Did)
		return err
	}) {
		if err != nil {
			t.Fatal(err)
		}
	}
	want(t, db, "n", done.Load())
	if done.Load() == 0 {
		t.Error("nothing was counted")
	}
}

func testJointContext(t *testing.T, db JointDB) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := db.Join(ctx, putJointly(), "a", int64(1), true); !errors.Is(err, context.Canceled) {
		t.Errorf("Join = %v, want context.Canceled", err)
	}
	want(t, db, "a", -1)
}

func testJointColumns(t *testing.T, db JointDB) {
	for _, columns := range []string{"", "k", "k uuid", "k text v bigint"} {
		if _, err := db.Join(t.Context(), &store.Joint{Columns: columns, Query: "SELECT 1"}, "a"); err == nil {
			t.Errorf("columns %q: no error", columns)
		}
	}
	for _, row := range [][]any{{}, {"a", int64(1)}, {"a", 1, true}, {"a", int64(1), "true"}} {
		if _, err := db.Join(t.Context(), putJointly(), row...); err == nil {
			t.Errorf("row %v: no error", row)
		}
	}
	want(t, db, "a", -1)
}

func testJointClosed(t *testing.T, db JointDB) {
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := db.Join(t.Context(), putJointly(), "a", int64(1), true); !errors.Is(err, store.ErrClosed) {
		t.Errorf("Join = %v, want ErrClosed", err)
	}
}
