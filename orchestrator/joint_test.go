package orchestrator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/delivery"
	"github.com/holdfast-dev/holdfast/delivery/inbox"
	"github.com/holdfast-dev/holdfast/operation"
	"github.com/holdfast-dev/holdfast/store"
)

// The columns of a new sandbox are declared twice: once with their types.
func TestTheColumnsOfAJointStatementAreThoseOfTheTransaction(t *testing.T) {
	if d := cmp.Diff(names(freshColumns), names(freshTypes)); d != "" {
		t.Error(d)
	}
}

// names are the first words of a list with commas.
func names(list string) (out []string) {
	for _, part := range strings.Split(list, ",") {
		out = append(out, strings.Fields(part)[0])
	}
	return out
}

// jointly is a harness whose database runs joint statements; it skips where none does.
func jointly(t *testing.T, change ...func(*Config)) *harness {
	t.Helper()
	h := newHarness(t, change...)
	if h.config.Joiner == nil {
		t.Skip("this dialect runs no joint statements")
	}
	return h
}

// unwilling is a database that takes no transaction.
type unwilling struct{ store.DB }

var errUnwilling = errors.New("a transaction was begun")

func (unwilling) Update(context.Context, func(store.Tx) error) error { return errUnwilling }

// contract: A1, B3. The usual create, the word of its guest and its end take no
// transaction but the joint statements: three round trips.
func TestAUsualCreateTakesJointStatementsAlone(t *testing.T) {
	h := jointly(t)
	h.config.DB = unwilling{h.db}
	h.fleet.script(func(_ context.Context, l holdfast.Level) (holdfast.Observation, error) {
		for range 2 { // the second one is a repeat
			if status := h.guestSays("ev-1", holdfast.DeliveryReady, l.Instance, 1); status != http.StatusNoContent {
				t.Errorf("the guest's word is answered %d", status)
			}
			h.heard = inbox.NewRecent() // as another process, which has not heard it
		}
		return h.fleet.reach(l)
	})
	sb, err := h.create("r1")
	if err != nil || sb.State != holdfast.SandboxReady {
		t.Fatalf("%+v, %v", sb, err)
	}
	if d := cmp.Diff(h.get(sb.ID), sb); d != "" {
		t.Errorf("what was answered and what is recorded differ:\n%s", d)
	}
	if n := h.count(`SELECT COUNT(*) FROM delivery WHERE outcome = $1`, didNote); n != 1 {
		t.Errorf("%d deliveries are recorded", n)
	}
	_, err = h.create("r1") // a repeat is not the usual case
	if holdfast.ReasonOf(err) != holdfast.ReasonStorage {
		t.Errorf("the repeat: %v", err)
	}
}

// What a joint statement records is what the transaction does, column by column.
func TestAJointStatementRecordsWhatTheTransactionDoes(t *testing.T) {
	h := jointly(t)
	plain := newHarnessOn(t, h.db, h.fleet, func(c *Config) { c.Joiner = nil })
	in := holdfast.CreateSandbox{
		Environment: "base", Name: "n", TTL: time.Hour, OnExpiry: holdfast.ExpirySuspend, Env: map[string]string{"K": "v"},
		Labels: map[string]string{"a": "1", "b": "two"}, Resources: holdfast.Resources{CPUMillis: 1500, MemoryBytes: 1 << 30, PIDs: 100},
		Egress: holdfast.EgressNone, Restart: holdfast.RestartFresh,
	}
	during := map[*harness]map[string]any{}
	var after []map[string]any
	for i, x := range []*harness{h, plain} {
		h.fleet.script(func(_ context.Context, l holdfast.Level) (holdfast.Observation, error) {
			during[x] = recorded(t, h, l.Spec.Owner)
			o, err := h.fleet.reach(l)
			o.Ports = []holdfast.Port{{Guest: 80, Address: "127.0.0.1:8080"}}
			return o, err
		})
		in.RequestID = fmt.Sprint("r", i)
		sb, err := x.CreateSandbox(t.Context(), alice, in)
		if err != nil {
			t.Fatal(err)
		}
		after = append(after, recorded(t, h, string(sb.ID)))
	}
	if d := cmp.Diff(during[plain], during[h]); d != "" {
		t.Errorf("a create in progress, by the transaction and by the statement:\n%s", d)
	}
	if d := cmp.Diff(after[1], after[0]); d != "" {
		t.Errorf("a finished create, by the transaction and by the statement:\n%s", d)
	}
}

// recorded is everything that is recorded of a sandbox, without what is each one's
// own; instants count from its creation, and those of its end from then.
func recorded(t *testing.T, h *harness, id string) map[string]any {
	t.Helper()
	all := map[string]any{}
	err := h.db.View(t.Context(), func(tx store.Tx) error {
		for name, query := range map[string]string{
			"sandbox": `SELECT to_jsonb(s) FROM sandbox s WHERE id = $1`, "operation": `SELECT to_jsonb(o) FROM operation o WHERE resource_id = $1`,
			"request": `SELECT to_jsonb(r) FROM request r WHERE resource = $1`,
			"labels":  `SELECT to_jsonb(array_agg(key || '=' || value ORDER BY key)) FROM sandbox_label WHERE sandbox = $1`,
		} {
			var text string
			if err := tx.QueryRowContext(t.Context(), query, id).Scan(&text); err != nil {
				return err
			}
			var v any
			if err := json.Unmarshal([]byte(text), &v); err != nil {
				return err
			}
			if row, ok := v.(map[string]any); ok {
				plainly(row)
			}
			all[name] = v
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func plainly(row map[string]any) {
	for _, own := range []string{"id", "instance", "resource", "resource_id", "request_id", "holder", "quota_shard"} {
		if s, _ := row[own].(string); s != "" || own == "quota_shard" {
			row[own] = "its own"
		}
	}
	if spec, ok := row["spec"].(string); ok {
		before, _, _ := strings.Cut(spec, `"owner"`)
		_, behind, _ := strings.Cut(spec, `"image"`)
		row["spec"] = before + behind
	}
	begun, _ := row["created_at"].(float64)
	if at, ok := row["entered_at"].(float64); ok {
		begun = at
	}
	over, _ := row["ready_at"].(float64)
	if at, ok := row["finished_at"].(float64); ok {
		over = at
	}
	for _, k := range slices.Sorted(maps.Keys(row)) {
		at, ok := row[k].(float64)
		switch {
		case !ok || at < 1e15: // an instant is some 1.8e15
		case over > 0 && at >= over && k != "deadline" && k != "due_at":
			row[k] = fmt.Sprint("from its end ", at-over)
		default:
			row[k] = fmt.Sprint("from its begin ", at-begun)
		}
	}
}

// trap T53: many at once in one shard that has less room than they want. The
// statement that finds it full halfway leaves nothing, and none counts too much.
func TestT53_AShardThatFillsUpWithinAJointStatementIsNotExceeded(t *testing.T) {
	h := jointly(t)
	for round := range 5 {
		quota := int64(3 * quotaShards)
		bot := holdfast.Caller{Project: h.project(fmt.Sprint("project-", round), holdfast.QuotaChange{Sandboxes: &quota}).ID, Name: "bot"}
		var wg sync.WaitGroup
		var taken atomic.Int64
		for i := range 24 {
			wg.Go(func() {
				in := request(fmt.Sprint("r", i))
				fresh := h.newRow(bot, in, "base")
				fresh.Shard = 1
				if _, done := h.createAtOnce(t.Context(), in, fingerprint{}, fresh); done {
					taken.Add(1)
				}
			})
		}
		wg.Wait()
		for what, n := range map[string]int{
			"are counted": h.count(`SELECT sandboxes FROM quota_shard WHERE project = $1 AND shard = 1`, string(bot.Project)),
			"are there":   h.count(`SELECT COUNT(*) FROM sandbox WHERE project = $1`, string(bot.Project)),
			"keys":        h.count(`SELECT COUNT(*) FROM request WHERE project = $1`, string(bot.Project)),
			"operations":  h.count(`SELECT COUNT(*) FROM operation o JOIN sandbox s ON s.id = o.resource_id WHERE s.project = $1`, string(bot.Project)),
		} {
			if n != int(taken.Load()) || n > 3 {
				t.Errorf("%d %s, and %d were told that they are; there is room for 3", n, what, taken.Load())
			}
		}
	}
}

// contract: B9. Where a project's events are recorded, its creates go the way that
// records them, also while this process does not know it yet.
func TestAJointStatementIsForProjectsWhoseEventsNobodyAskedFor(t *testing.T) {
	h := jointly(t)
	recorded := h.project("recorded", holdfast.QuotaChange{}).ID
	for _, recording := range []bool{false, true} {
		err := h.db.Update(t.Context(), func(tx store.Tx) error {
			_, err := tx.ExecContext(t.Context(), `INSERT INTO event_project (project, recording, sequence, purged, asked_at) VALUES ($1, $2, 0, 0, 0)
				ON CONFLICT (project) DO UPDATE SET recording = excluded.recording`, string(recorded), recording)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		in := request(fmt.Sprint("r", recording))
		_, done := h.createAtOnce(t.Context(), in, fingerprint{}, h.newRow(holdfast.Caller{Project: recorded, Name: "alice"}, in, "base"))
		if done == recording {
			t.Errorf("recorded %v: the joint statement did it: %v", recording, done)
		}
	}
}

// contract: A6. Traps T11, T14: what the joint statement finds changed it leaves to
// the transaction, which says so; it ends nothing under a claim that is not current.
func TestA6_AJointFinishIsFenced(t *testing.T) {
	for name, change := range map[string]string{
		"a later claim":        `UPDATE operation SET claim = claim + 1 WHERE resource_id = $1`,
		"another holder":       `UPDATE operation SET holder = 'another' WHERE resource_id = $1`,
		"it was released":      `UPDATE operation SET holder = '', claim_expires = 0 WHERE resource_id = $1`,
		"it has ended":         `UPDATE operation SET state = 'SUPERSEDED' WHERE resource_id = $1`,
		"a delete is wanted":   `UPDATE sandbox SET delete_wanted = TRUE WHERE id = $1`,
		"it is written since":  `UPDATE sandbox SET updated_at = updated_at + 1 WHERE id = $1`,
		"it is extended":       `UPDATE sandbox SET ttl = ttl + 1 WHERE id = $1`,
		"it failed":            `UPDATE sandbox SET state = 'FAILED' WHERE id = $1`,
		"an incarnation later": `UPDATE sandbox SET incarnation = 2 WHERE id = $1`,
		"a generation later":   `UPDATE sandbox SET generation = 2 WHERE id = $1`,
		"it has an owner":      `UPDATE sandbox SET owner = 'another' WHERE id = $1`,
		"its events are asked for": `INSERT INTO event_project (project, recording, sequence, purged, asked_at)
			SELECT project, TRUE, 0, 0, 0 FROM sandbox WHERE id = $1`,
		"it is not counted": `UPDATE sandbox SET quota_shard = 0 WHERE id = $1`,
	} {
		t.Run(name, func(t *testing.T) {
			h := jointly(t)
			b, done := h.createAtOnce(t.Context(), request("r"), fingerprint{}, h.newRow(alice, request("r"), "base"))
			if !done {
				t.Fatal("it is not the usual case")
			}
			err := h.db.Update(t.Context(), func(tx store.Tx) error {
				_, err := tx.ExecContext(t.Context(), change, string(b.row.ID))
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
			if r, done := h.finishAtOnce(t.Context(), b, holdfast.Observation{}); done {
				t.Errorf("it was finished all the same: %+v", r)
			}
			if n := h.count(`SELECT COUNT(*) FROM sandbox WHERE state = 'READY'`) + h.count(`SELECT COUNT(*) FROM operation WHERE state = 'DONE'`); n != 0 {
				t.Error("one of the two was written")
			}
		})
	}
}

// contract: B3, B7. Traps T36, T37: what no live attempt at this boot's create hears
// is left to the transaction.
func TestB7_AJointStatementNotesOnlyWhatALiveAttemptHears(t *testing.T) {
	for name, change := range map[string]string{
		"nobody is at it":        `UPDATE operation SET holder = '', claim_expires = 0 WHERE resource_id = $1`,
		"the claim has run out":  `UPDATE operation SET claim_expires = 1 WHERE resource_id = $1`,
		"nothing is pending":     `UPDATE operation SET state = 'DONE' WHERE resource_id = $1`,
		"an incarnation later":   `UPDATE sandbox SET incarnation = 2 WHERE id = $1`,
		"an incarnation earlier": `UPDATE sandbox SET incarnation = 0 WHERE id = $1`,
		"it is READY":            `UPDATE sandbox SET state = 'READY' WHERE id = $1`,
		"it is unknown":          `DELETE FROM sandbox WHERE id = $1`,
	} {
		t.Run(name, func(t *testing.T) {
			h := jointly(t)
			b, done := h.createAtOnce(t.Context(), request("r"), fingerprint{}, h.newRow(alice, request("r"), "base"))
			if !done {
				t.Fatal("it is not the usual case")
			}
			noted := func(id string) bool {
				d := delivery.Received{Source: delivery.InstanceSource(string(b.row.Instance), 1), Signed: delivery.Signed{ID: id}, Kind: string(holdfast.DeliveryReady)}
				return h.readyAtOnce(t.Context(), d, holdfast.InstanceRef{Instance: b.row.Instance, Incarnation: 1})
			}
			for range 2 {
				if !noted("ev-1") {
					t.Error("the usual one was not noted, or its repeat not known")
				}
			}
			err := h.db.Update(t.Context(), func(tx store.Tx) error {
				_, err := tx.ExecContext(t.Context(), change, string(b.row.ID))
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
			if noted("ev-2") || h.count(`SELECT COUNT(*) FROM delivery`) != 1 {
				t.Error("it was noted all the same")
			}
			if !noted("ev-1") {
				t.Error("the repeat of what is recorded is not known any more")
			}
		})
	}
}

// A claim whose length or operation makes no sense is recorded by no statement.
func TestAnIntentThatFitsNoJointStatementIsRefused(t *testing.T) {
	in := operation.Intent{ID: "op", Resource: operation.Resource{Kind: kindSandbox, ID: "sb"}, Kind: "CREATE", Generation: 1, Deadline: time.Now()}
	a := operation.Attempt{Holder: "h"}
	if _, err := operation.JointValues(time.Now(), in, a); err != nil {
		t.Error(err)
	}
	withInput := in
	withInput.Input = []byte(`{}`)
	if _, err := operation.JointValues(time.Now(), withInput, a); err == nil {
		t.Error("an input is lost")
	}
	if _, err := operation.JointValues(time.Now(), in, operation.Attempt{}); err == nil {
		t.Error("nobody holds it")
	}
	in.Generation = 0
	if _, err := operation.JointValues(time.Now(), in, a); err == nil {
		t.Error("it has no generation")
	}
}
