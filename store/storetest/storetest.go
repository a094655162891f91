// Package storetest is what every dialect of the store must pass. A dialect joins in a few lines: a function that opens
// an empty database with [Migrations], given to [Run] and, if it keeps data across a reopen, to [RunDurable].
package storetest

import (
	"context"
	"embed"
	"fmt"
	"io/fs"
	"testing"

	"github.com/holdfast-dev/holdfast/store"
)

//go:embed migrations/*.sql
var files embed.FS

// Migrations are the tables that the suite uses: thing(k primary key, v >= 0) and part(k primary key, thing), whose
// reference to a thing is checked at commit.
func Migrations() store.Migrations {
	sub, err := fs.Sub(files, "migrations")
	if err != nil {
		panic(err) // the name is a constant of ours
	}
	return store.Migrations{Name: "storetest", FS: sub}
}

// Open opens an empty database with [Migrations] and closes it when the test ends.
type Open func(t *testing.T) store.DB

// Run is the suite.
func Run(t *testing.T, open Open) {
	for _, tc := range []struct {
		name string
		test func(t *testing.T, db store.DB)
	}{
		{"UpdateIsSeenByEveryLaterView", testUpdateIsSeen},
		{"FailedUpdateWritesNothing", testFailedUpdate},
		{"FailedStatementRefusesTheRest", testFailedStatement},
		{"FailedStatementCannotBeOverlooked", testOverlookedFailure},
		{"NoRowIsNoFailure", testNoRow},
		{"T48_MembersAreIsolated", testIsolation},
		{"T48_OneOfTwoEqualKeysWins", testEqualKeys},
		{"T48_DeferredViolationFailsItsOwnUpdateOnly", testDeferredViolation},
		{"CountersAreNotLost", testCounter},
		{"ContextEndedBefore", testContextBefore},
		{"ContextEndedMidRun", testContextMidRun},
		{"PanicGoesOnInTheCaller", testPanic},
		{"GoexitEndsTheCaller", testGoexit},
		{"TxIsUselessAfterItsFunction", testTxAfterEnd},
		{"OpenRowsRefuseTheNextStatement", testOpenRows},
		{"LeftOpenRowsDoNoHarm", testLeftOpenRows},
		{"ViewCannotWrite", testViewCannotWrite},
		{"ViewNeverSeesTheUncommitted", testViewNeverSeesUncommitted},
		{"ViewIsOneSnapshot", testViewIsOneSnapshot},
		{"ViewPanicGivesItsConnectionBack", testViewPanic},
		{"T41_NowMovesOn", testNow},
		{"ClosedIsRefused", testClosed},
	} {
		t.Run(tc.name, func(t *testing.T) { tc.test(t, open(t)) })
	}
}

// Put inserts a thing; it fails if there is one of that key, or if v is negative.
func Put(tx store.Tx, k string, v int64) error {
	_, err := tx.ExecContext(context.Background(), "INSERT INTO thing (k, v) VALUES ($1, $2)", k, v)
	if err != nil {
		return fmt.Errorf("put %s: %w", k, err)
	}
	return nil
}

// Get returns a thing's value; sql.ErrNoRows if there is none.
func Get(tx store.Tx, k string) (int64, error) {
	var v int64
	err := tx.QueryRowContext(context.Background(), "SELECT v FROM thing WHERE k = $1", k).Scan(&v)
	if err != nil {
		return 0, fmt.Errorf("get %s: %w", k, err)
	}
	return v, nil
}
