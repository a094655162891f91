package sqlite

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/holdfast-dev/holdfast/store"
)

func TestPositionalRewritesWhatItReads(t *testing.T) {
	for _, tc := range []struct {
		query, want string
		order       []int
	}{
		{"SELECT 1", "SELECT 1", nil},
		{"INSERT INTO t (a, b) VALUES ($1, $2)", "INSERT INTO t (a, b) VALUES (?, ?)", []int{0, 1}},
		{"UPDATE t SET a = $3, b=$1 WHERE c =$2", "UPDATE t SET a = ?, b=? WHERE c =?", []int{2, 0, 1}},
		{`SELECT '$1 it''s $2', "a$3", [b$4], ` + "`$5`, $1 -- $2\n, /* $3 */ $2 FROM t", `SELECT '$1 it''s $2', "a$3", [b$4], ` +
			"`$5`, ? -- $2\n, /* $3 */ ? FROM t", []int{0, 1}},
		{"SELECT $1 -- $2", "SELECT ? -- $2", []int{0}},
		{"SELECT $10, $1, $2, $3, $4, $5, $6, $7, $8, $9", "SELECT ?, ?, ?, ?, ?, ?, ?, ?, ?, ?", []int{9, 0, 1, 2, 3, 4, 5, 6, 7, 8}},
		{"SELECT 5/$1-$2", "SELECT 5/?-?", []int{0, 1}},
		// Left as they are:
		{query: "SELECT $1, $1"}, {query: "SELECT $2"}, {query: "SELECT $1, $3"}, {query: "SELECT $0"}, {query: "SELECT $01"},
		{query: "SELECT $name"}, {query: "SELECT $1a"}, {query: "SELECT a$1"}, {query: "SELECT $"}, {query: "SELECT :a, $1"},
		{query: "SELECT ?, $1"}, {query: "SELECT @a, $1"}, {query: "SELECT 'it, $1"}, {query: "SELECT /*/ $1"}, {query: ""},
	} {
		want := tc.want
		if want == "" {
			want = tc.query
		}
		if got, order := positional(tc.query); got != want || !slices.Equal(order, tc.order) {
			t.Errorf("positional(%q) = %q, %v, want %q, %v", tc.query, got, order, want, tc.order)
		}
	}
}

// Every argument comes back from the place at which the query names it, in whatever order it names them.
func TestPositionalGivesEachParameterItsArgument(t *testing.T) {
	db := openTest(t, Config{})
	for seed := range uint64(200) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		n := 1 + rnd.IntN(12)
		places := rnd.Perm(n)
		if seed%3 == 0 { // one stands twice
			places = append(places, rnd.IntN(n))
		}
		var selected []string
		for _, p := range places {
			selected = append(selected, "$"+string(rune('0'+(p+1)/10))+string(rune('0'+(p+1)%10)))
		}
		query := strings.ReplaceAll("SELECT "+strings.Join(selected, ", "), "$0", "$")
		args, got := make([]any, n), make([]any, len(places))
		for i := range args {
			args[i] = int64(i)
			if rnd.IntN(2) == 0 {
				args[i] = "text"
			}
		}
		into := make([]any, len(got))
		for i := range got {
			into[i] = &got[i]
		}
		read := func(tx store.Tx) error { return tx.QueryRowContext(t.Context(), query, args...).Scan(into...) }
		for _, run := range []error{db.Update(t.Context(), read), db.View(t.Context(), read)} {
			if run != nil {
				t.Fatalf("%s: %v", query, run)
			}
		}
		for i, p := range places {
			if got[i] != args[p] {
				t.Fatalf("%s with %v: column %d is %v", query, args, i, got[i])
			}
		}
	}
	err := db.Update(t.Context(), func(tx store.Tx) error {
		_, err := tx.ExecContext(t.Context(), "INSERT INTO thing (k, v) VALUES ($1, $2)", "k")
		return err
	})
	if err == nil || !strings.Contains(err.Error(), "missing argument") {
		t.Errorf("an insert with one argument of two: %v", err)
	}
}
