package simulation

import (
	"context"
	"encoding/json"
	"errors"
	"slices"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/store"
)

// hookActionRow is what a rule made of a delivery.
type hookActionRow struct {
	delivery, rule, failure string // the delivery with its hook, as outcomes name it
	state                   holdfast.HookActionState
	made                    []string
}

// hooked is what the database says of webhooks.
type hooked struct {
	deliveries map[string]bool // that were recorded
	actions    []hookActionRow
	events     []received // of the default project
	unsent     []string   // rows of the outbox

	hookSessions, hookBoxes int // that hooks made
}

func (d *recorded) readHooked(ctx context.Context, tx store.Tx) error {
	d.deliveries = map[string]bool{}
	return errors.Join(
		scan(ctx, tx, `SELECT substr(source, 6) || '/' || id FROM delivery WHERE source >= 'hook/' AND source < 'hook0'`, func(scan func(...any) error) error {
			var id string
			err := scan(&id)
			d.deliveries[id] = true
			return err
		}),
		scan(ctx, tx, `SELECT hook || '/' || delivery, rule, state, failure, resources FROM hook_action ORDER BY hook, delivery`, func(scan func(...any) error) error {
			var a hookActionRow
			var made string
			err := scan(&a.delivery, &a.rule, &a.state, &a.failure, &made)
			if made != "" {
				err = errors.Join(err, json.Unmarshal([]byte(made), &a.made))
			}
			d.actions = append(d.actions, a)
			return err
		}),
		tx.QueryRowContext(ctx, `SELECT COUNT(*) FROM session WHERE creator LIKE 'hook:%'`).Scan(&d.hookSessions),
		tx.QueryRowContext(ctx, `SELECT COUNT(*) FROM sandbox WHERE creator LIKE 'hook:%' AND owner = ''`).Scan(&d.hookBoxes),
		scan(ctx, tx, `SELECT id, resource, at FROM event WHERE project = 'default' ORDER BY at, id`, func(scan func(...any) error) error {
			var e received
			var at int64
			err := scan(&e.event, &e.resource, &at)
			e.at = store.FromMicros(at)
			d.events = append(d.events, e)
			return err
		}),
		scan(ctx, tx, `SELECT kind || ' ' || id || ' ' || state || ': ' || last_error FROM outbox WHERE state <> 'SENT' ORDER BY id`, func(scan func(...any) error) error {
			var row string
			err := scan(&row)
			d.unsent = append(d.unsent, row)
			return err
		}))
}

// webhooks: what was taken from providers is done, once; and every event was sent,
// those of a resource in their order.
func (c *checking) webhooks() {
	if c.world.receiver != nil {
		c.acted()
		c.sent(c.world.receiver)
	}
}

// taken: what a provider was told is recorded, and what a forger sent is not.
func (c *checking) taken(outcomes []Outcome) {
	if c.world.receiver == nil {
		return
	}
	rules := map[string]string{}
	provided := map[string]bool{}
	for _, o := range outcomes {
		if o.Op.Verb != Deliver {
			continue
		}
		p := providedBy(o.Op.Slot)
		id := p.hook + "/" + p.id
		rules[id], provided[id] = p.rule(), true
		if o.Err == nil && !c.deliveries[id] {
			c.breaks("%s was taken, and is not recorded", id)
		}
	}
	acted := map[string]int{}
	for _, a := range c.actions {
		acted[a.delivery]++
		if rules[a.delivery] != a.rule {
			c.breaks("%s was acted upon by the rule %q, want %q", a.delivery, a.rule, rules[a.delivery])
		}
	}
	for id := range c.deliveries {
		want := 1
		if rules[id] == "" {
			want = 0
		}
		if !provided[id] || acted[id] != want {
			c.breaks("%s was recorded, sent by its provider: %v, with %d actions, want %d", id, provided[id], acted[id], want)
		}
	}
	slices.Sort(c.broken)
}

// acted: every action has come to its end, and what it made is there, and is all that
// hooks made.
func (c *checking) acted() {
	tasks := map[string]string{}
	for _, t := range c.tasks {
		tasks[t.id] = t.session
	}
	want := map[string]int{}
	for _, a := range c.actions {
		want[a.rule]++
		switch {
		case a.state == holdfast.HookActionPending:
			c.breaks("the action of %s is still pending: %s", a.delivery, a.failure)
		case a.state == holdfast.HookActionFailed && a.failure == "":
			c.breaks("the action of %s is FAILED, and nothing says why", a.delivery)
		case a.state == holdfast.HookActionDone && a.rule == "work":
			if len(a.made) != 2 || c.sessions[a.made[0]].id == "" || tasks[a.made[1]] != a.made[0] {
				c.breaks("the action of %s is DONE and made %v", a.delivery, a.made)
			}
		case a.state == holdfast.HookActionDone:
			if len(a.made) != 1 || c.sandboxes[a.made[0]].id == "" {
				c.breaks("the action of %s is DONE and made %v", a.delivery, a.made)
			}
		}
	}
	if c.hookSessions > want["work"] || c.hookBoxes > want["box"] {
		c.breaks("hooks made %d sessions and %d sandboxes of %d and %d actions", c.hookSessions, c.hookBoxes, want["work"], want["box"])
	}
}

// sent: the receiver has every event and no other; of a resource's events, each came
// first after all that were before it (contract: B9).
func (c *checking) sent(x *receiver) {
	x.mu.Lock()
	defer x.mu.Unlock()
	c.broken = append(c.broken, x.wrong...)
	for _, row := range c.unsent {
		c.breaks("an event is not sent: %s", row)
	}
	had, last := map[string]bool{}, map[string]received{}
	for _, e := range x.got {
		if had[e.event] {
			continue
		}
		if before := last[e.resource]; e.at.Before(before.at) {
			c.breaks("the receiver got %s of %s after %s, which happened later", e.event, e.resource, before.event)
		}
		had[e.event], last[e.resource] = true, e
	}
	for _, e := range c.events {
		if !had[e.event] {
			c.breaks("the receiver never got %s of %s", e.event, e.resource)
		}
		delete(had, e.event)
	}
	for event := range had {
		c.breaks("the receiver got %s, which is no event", event)
	}
	slices.Sort(c.broken)
}
