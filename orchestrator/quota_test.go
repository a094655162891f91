package orchestrator

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"pgregory.net/rapid"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/store"
)

// limited is a caller in a project of its own with that quota.
func (h *harness) limited(sandboxes int64) holdfast.Caller {
	h.t.Helper()
	return holdfast.Caller{Project: h.project("limited", holdfast.QuotaChange{Sandboxes: &sandboxes}).ID, Name: "bot"}
}

func (h *harness) usage(id holdfast.ProjectID) holdfast.Usage {
	h.t.Helper()
	p, err := h.GetProject(h.t.Context(), root, string(id))
	if err != nil {
		h.t.Fatal(err)
	}
	return p.Usage
}

func (h *harness) setQuotas(id holdfast.ProjectID, change holdfast.QuotaChange) {
	h.t.Helper()
	if _, err := h.SetQuotas(h.t.Context(), root, holdfast.SetQuotas{Project: string(id), Quotas: change}); err != nil {
		h.t.Fatal(err)
	}
}

// honest fails unless the counters are what the sandboxes hold.
func (h *harness) honest() {
	h.t.Helper()
	items, _, err := h.quotaPage(h.t.Context(), "", 100)
	if err != nil || len(items) != 0 {
		h.t.Errorf("the recount finds %d drifted, %v", len(items), err)
	}
}

func request(id string) holdfast.CreateSandbox {
	return holdfast.CreateSandbox{RequestID: id, Environment: "base"}
}

// contract: A8
func TestA8_AQuotaIsDecidedInTheRecordingTransactionAndNothingIsRecorded(t *testing.T) {
	h, ctx := newHarness(t), t.Context()
	bot := h.limited(2)
	var made []holdfast.Sandbox
	for i := range 2 {
		sb, err := h.CreateSandbox(ctx, bot, request(fmt.Sprint(i)))
		if err != nil {
			t.Fatal(err)
		}
		made = append(made, sb)
	}
	rows := h.count(`SELECT (SELECT COUNT(*) FROM sandbox) + (SELECT COUNT(*) FROM operation) + (SELECT COUNT(*) FROM request)`)
	calls := len(h.fleet.levels())
	_, err := h.CreateSandbox(ctx, bot, request("third"))
	wantError(t, err, holdfast.ResourceExhausted, holdfast.ReasonQuota)
	e := holdfast.AsError(err)
	if e.Resource != string(bot.Project) || e.Details["quota"] != "sandboxes" || e.Details["limit"] != "2" || e.Details["used"] != "2" || e.Details["deleting"] != "0" {
		t.Errorf("it says %+v", e)
	}
	if n := h.count(`SELECT (SELECT COUNT(*) FROM sandbox) + (SELECT COUNT(*) FROM operation) + (SELECT COUNT(*) FROM request)`); n != rows || len(h.fleet.levels()) != calls {
		t.Errorf("%d rows, %d before; %d levels, %d before", n, rows, len(h.fleet.levels()), calls)
	}
	if again, err := h.CreateSandbox(ctx, bot, request("0")); err != nil || again.ID != made[0].ID {
		t.Errorf("the repeat of a create at the quota: %+v, %v", again, err)
	}
	if _, err := h.create("of-another-project"); err != nil {
		t.Errorf("another project's create: %v", err)
	}
	if _, err := h.DeleteSandbox(ctx, bot, holdfast.MutateSandbox{ID: made[0].ID}); err != nil {
		t.Fatal(err)
	}
	if sb, err := h.CreateSandbox(ctx, bot, request("third")); err != nil || sb.State != holdfast.SandboxReady {
		t.Errorf("the same request once there is room: %+v, %v", sb, err)
	}
	h.honest()
}

// contract: A8. Processors and memory are quotas too, by what was asked for.
func TestA8_EachQuotaIsKeptByItself(t *testing.T) {
	h, ctx := newHarness(t), t.Context()
	bot := h.limited(10)
	h.setQuotas(bot.Project, holdfast.QuotaChange{CPUMillis: new(int64(2500)), MemoryBytes: new(int64(1 << 30))})
	in := request("cpu")
	in.Resources.CPUMillis = 2501
	_, err := h.CreateSandbox(ctx, bot, in)
	wantError(t, err, holdfast.ResourceExhausted, holdfast.ReasonQuota)
	if q := holdfast.AsError(err).Details["quota"]; q != "cpu_millis" {
		t.Errorf("refused for %s", q)
	}
	in.Resources = holdfast.Resources{CPUMillis: 2500, MemoryBytes: 1<<30 - 16<<20}
	if _, err = h.CreateSandbox(ctx, bot, in); err != nil {
		t.Fatal(err)
	}
	if u := h.usage(bot.Project); u != (holdfast.Usage{Sandboxes: 1, CPUMillis: 2500, MemoryBytes: 1<<30 - 16<<20}) {
		t.Errorf("it holds %+v", u)
	}
	h.setQuotas(bot.Project, holdfast.QuotaChange{CPUMillis: new(holdfast.NoLimit)})
	in = request("memory")
	in.Resources.MemoryBytes = 17 << 20
	_, err = h.CreateSandbox(ctx, bot, in)
	wantError(t, err, holdfast.ResourceExhausted, holdfast.ReasonQuota)
	if q := holdfast.AsError(err).Details["quota"]; q != "memory_bytes" {
		t.Errorf("refused for %s", q)
	}
	in.Resources.MemoryBytes = 16 << 20
	if _, err = h.CreateSandbox(ctx, bot, in); err != nil {
		t.Errorf("what exactly fits: %v", err)
	}
}

// T53. At READ COMMITTED a sum of rows misses what another transaction is just
// inserting; shards with room of their own do not.
func TestT53_TheQuotaIsExactHoweverManyCreateAtOnce(t *testing.T) {
	h := newHarness(t)
	const limit, ask = 40, 160
	bot := h.limited(limit)
	other := newHarnessOn(t, h.db, h.fleet)
	var made, refused atomic.Int64
	var all sync.WaitGroup
	for i := range ask {
		s := []*harness{h, other}[i%2]
		all.Go(func() {
			_, err := s.CreateSandbox(t.Context(), bot, request(fmt.Sprint(i)))
			switch {
			case err == nil:
				made.Add(1)
			case holdfast.ReasonOf(err) == holdfast.ReasonQuota:
				refused.Add(1)
			default:
				t.Errorf("create %d: %v", i, err)
			}
		})
	}
	all.Wait()
	if made.Load() != limit || refused.Load() != ask-limit {
		t.Errorf("%d were made and %d refused, want %d and %d", made.Load(), refused.Load(), limit, ask-limit)
	}
	if u := h.usage(bot.Project); u.Sandboxes != limit {
		t.Errorf("%+v is held", u)
	}
	h.honest()
}

// T53. Creates, deletes and new quotas race; what is held is never over the quota
// that was in force, and nothing is lost or given back twice.
func TestT53_CreatesDeletesAndNewQuotasRaceAndTheCountersAddUp(t *testing.T) {
	h := newHarness(t)
	const most = 24
	bot := h.limited(most)
	other := newHarnessOn(t, h.db, h.fleet)
	ctx := t.Context()
	var all sync.WaitGroup
	for w := range 8 {
		s, r := []*harness{h, other}[w%2], rand.New(rand.NewPCG(uint64(w), 1))
		all.Go(func() {
			var mine []holdfast.SandboxID
			for i := range 15 {
				if len(mine) > 0 && r.IntN(2) == 0 {
					if _, err := s.DeleteSandbox(ctx, bot, holdfast.MutateSandbox{ID: mine[0]}); err != nil {
						t.Errorf("delete: %v", err)
					}
					mine = mine[1:]
					continue
				}
				sb, err := s.CreateSandbox(ctx, bot, request(fmt.Sprintf("%d-%d", w, i)))
				if err == nil {
					mine = append(mine, sb.ID)
				} else if holdfast.ReasonOf(err) != holdfast.ReasonQuota {
					t.Errorf("create: %v", err)
				}
				if n := s.count(`SELECT COUNT(*) FROM sandbox WHERE project = $1 AND state <> 'DELETED'`, string(bot.Project)); n > most {
					t.Errorf("%d sandboxes, and no quota was over %d", n, most)
				}
			}
		})
	}
	all.Go(func() {
		for i := range 15 {
			limit := int64(4 + i%5*5)
			if _, err := h.SetQuotas(ctx, root, holdfast.SetQuotas{Project: string(bot.Project), Quotas: holdfast.QuotaChange{Sandboxes: &limit}}); err != nil {
				t.Errorf("set quotas: %v", err)
			}
		}
	})
	all.Wait()
	if n := h.count(`SELECT COUNT(*) FROM sandbox WHERE project = $1 AND state <> 'DELETED'`, string(bot.Project)); int64(n) != h.usage(bot.Project).Sandboxes {
		t.Errorf("%d sandboxes, and %+v is counted", n, h.usage(bot.Project))
	}
	h.honest()
}

// contract: A8. Below what is held, a quota lets nothing be created until less is
// held than it allows.
func TestAQuotaBelowWhatIsHeldClosesUntilItFits(t *testing.T) {
	h, ctx := newHarness(t), t.Context()
	bot := h.limited(holdfast.NoLimit)
	var made []holdfast.SandboxID
	for i := range 10 {
		sb, err := h.CreateSandbox(ctx, bot, request(fmt.Sprint(i)))
		if err != nil {
			t.Fatal(err)
		}
		made = append(made, sb.ID)
	}
	h.setQuotas(bot.Project, holdfast.QuotaChange{Sandboxes: new(int64(5))})
	for held := 10; held > 0; held-- {
		if held >= 5 {
			_, err := h.CreateSandbox(ctx, bot, request(fmt.Sprint("no", held)))
			wantError(t, err, holdfast.ResourceExhausted, holdfast.ReasonQuota)
		}
		if _, err := h.DeleteSandbox(ctx, bot, holdfast.MutateSandbox{ID: made[held-1]}); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 5 {
		if _, err := h.CreateSandbox(ctx, bot, request(fmt.Sprint("yes", i))); err != nil {
			t.Fatal(err)
		}
	}
	_, err := h.CreateSandbox(ctx, bot, request("sixth"))
	wantError(t, err, holdfast.ResourceExhausted, holdfast.ReasonQuota)
	h.honest()
}

// contract: A11, and "stuck deleting for an hour while counted in the quota": a
// failed sandbox gives back at once; one that is DELETING has its resources still,
// is counted, and is named as the reason.
func TestA11_AFailedSandboxGivesBackOnceAndADeletingOneWhenItIsDone(t *testing.T) {
	h, ctx := newHarness(t), t.Context()
	bot := h.limited(1)
	h.fleet.script(func(context.Context, holdfast.Level) (holdfast.Observation, error) {
		return holdfast.Observation{}, holdfast.E(holdfast.InvalidArgument, holdfast.ReasonNoSuchImage, "no such image")
	})
	_, err := h.CreateSandbox(ctx, bot, request("fails"))
	wantError(t, err, holdfast.FailedPrecondition, holdfast.ReasonCreateFailed)
	if u := h.usage(bot.Project); u != (holdfast.Usage{}) {
		t.Errorf("a failed one holds %+v", u)
	}
	h.fleet.script(nil)
	sb, err := h.CreateSandbox(ctx, bot, request("works"))
	if err != nil {
		t.Fatal(err)
	}
	failed, err := h.CreateSandbox(ctx, bot, request("fails"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := h.DeleteSandbox(ctx, bot, holdfast.MutateSandbox{ID: failed.ID}); err != nil {
		t.Fatal(err)
	}
	if u := h.usage(bot.Project); u.Sandboxes != 1 {
		t.Errorf("deleting what had failed gave back a second time: %+v is held", u)
	}
	h.fleet.script(func(_ context.Context, l holdfast.Level) (holdfast.Observation, error) {
		return holdfast.Observation{}, holdfast.E(holdfast.Unavailable, holdfast.ReasonHostUnreachable, "no answer")
	})
	if _, err = h.DeleteSandbox(ctx, bot, holdfast.MutateSandbox{ID: sb.ID}); holdfast.CodeOf(err) != holdfast.Unavailable {
		t.Fatal(err)
	}
	_, err = h.CreateSandbox(ctx, bot, request("next"))
	wantError(t, err, holdfast.ResourceExhausted, holdfast.ReasonQuota)
	if d := holdfast.AsError(err).Details["deleting"]; d != "1" {
		t.Errorf("%s are said to be DELETING", d)
	}
	h.fleet.script(nil)
	for range 2 {
		if _, err := h.DeleteSandbox(ctx, bot, holdfast.MutateSandbox{ID: sb.ID}); err != nil {
			t.Fatal(err)
		}
	}
	if u := h.usage(bot.Project); u != (holdfast.Usage{}) {
		t.Errorf("%+v is held by nothing", u)
	}
	h.honest()
}

// contract: C1. Counters that are wrong are set right by the recount, and so are
// sandboxes of before there were quotas.
func TestC1_TheRecountSetsWrongCountersRight(t *testing.T) {
	h, ctx := newHarness(t), t.Context()
	bot := h.limited(6)
	for i := range 4 {
		if _, err := h.CreateSandbox(ctx, bot, request(fmt.Sprint(i))); err != nil {
			t.Fatal(err)
		}
	}
	h.honest()
	dead, err := h.CreateSandbox(ctx, bot, request("dead"))
	if err == nil {
		_, err = h.DeleteSandbox(ctx, bot, holdfast.MutateSandbox{ID: dead.ID})
	}
	if err != nil {
		t.Fatal(err)
	}
	want := h.usage(bot.Project)
	for what, damage := range map[string]string{
		"a counter too high":                `UPDATE quota_shard SET sandboxes = sandboxes + 2, cpu_millis = 7 WHERE project = $1 AND shard = 3`,
		"a counter too low":                 `UPDATE quota_shard SET sandboxes = sandboxes - 3 WHERE project = $1 AND shard = 1`,
		"sandboxes that were not counted":   `UPDATE sandbox SET quota_shard = 0, cpu_millis = 0, memory_bytes = 0 WHERE project = $1`,
		"a deletion that gave nothing back": `UPDATE sandbox SET quota_shard = 5 WHERE project = $1 AND state = 'DELETED'`,
	} {
		err := h.db.Update(ctx, func(tx store.Tx) error {
			_, err := tx.ExecContext(ctx, damage, string(bot.Project))
			return err
		})
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		h.sweep(SweepQuotas)
		h.honest()
		if got := h.usage(bot.Project); got != want {
			t.Errorf("%s: %+v is counted, want %+v", what, got, want)
		}
	}
	for i := range 2 {
		if _, err := h.CreateSandbox(ctx, bot, request(fmt.Sprint("more", i))); err != nil {
			t.Error(err)
		}
	}
	_, err = h.CreateSandbox(ctx, bot, request("too-many"))
	wantError(t, err, holdfast.ResourceExhausted, holdfast.ReasonQuota)
}

// A create costs one statement more for the quota, and neither another transaction
// nor another project's shard.
func TestACreateThatFitsTakesOneTransactionOfItsOwnShard(t *testing.T) {
	h := newHarness(t)
	bot := h.limited(1000)
	sb, err := h.CreateSandbox(t.Context(), bot, request("r"))
	if err != nil {
		t.Fatal(err)
	}
	if n := h.count(`SELECT COUNT(*) FROM quota_shard WHERE project = $1 AND sandboxes > 0 AND shard = $2`, string(bot.Project), shardOf(sb.ID)); n != 1 {
		t.Errorf("%d shards count it", n)
	}
}

// The caps of a quota always add up to it, unless it is exceeded, which closes
// every shard.
func TestCapsAddUpToTheQuotaOrAreClosed(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 40).Draw(t, "shards")
		limit := rapid.Int64Range(-1, 200).Draw(t, "limit")
		shards := make([]shard, n)
		total := int64(0)
		for i := range shards {
			shards[i].number = int64(i) + 1
			shards[i].held.CPUMillis = rapid.Int64Range(0, 9).Draw(t, "held")
			total += shards[i].held.CPUMillis
		}
		want := holdfast.Usage{CPUMillis: rapid.Int64Range(0, 20).Draw(t, "want")}
		own := rapid.Int64Range(1, int64(n)).Draw(t, "own")
		after := share(shards, holdfast.Quotas{Sandboxes: holdfast.NoLimit, CPUMillis: limit, MemoryBytes: holdfast.NoLimit}, own, want)
		caps, over := int64(0), total+want.CPUMillis > limit && limit != holdfast.NoLimit
		for i, s := range after {
			caps += s.caps.CPUMillis
			switch {
			case over && s.caps.CPUMillis != closed:
				t.Fatalf("shard %d is not closed", s.number)
			case !over && s.caps.CPUMillis < s.held.CPUMillis:
				t.Fatalf("shard %d holds %d of %d", s.number, s.held.CPUMillis, s.caps.CPUMillis)
			case s.caps.Sandboxes != holdfast.MaxQuota:
				t.Fatalf("shard %d is limited where nothing is", s.number)
			}
			if got := s.held.CPUMillis - shards[i].held.CPUMillis; got != 0 && (s.number != own || got != want.CPUMillis) {
				t.Fatalf("shard %d was given %d", s.number, got)
			}
		}
		if !over && limit != holdfast.NoLimit && caps != limit {
			t.Fatalf("the caps add up to %d, the quota is %d", caps, limit)
		}
	})
}
