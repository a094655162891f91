package clienttest

import (
	"context"
	"slices"
	"strconv"
	"strings"

	"github.com/holdfast-dev/holdfast"
)

// hooked is what the fake has of events and webhooks, out and in.
type hooked struct {
	events   []holdfast.Event
	webhooks []holdfast.Webhook
	dead     []holdfast.DeadLetter
	hooks    []holdfast.Hook
	actions  []holdfast.HookAction
}

// Happen records an event of the project.
func (f *Fake) Happen(kind holdfast.EventKind, resource string) holdfast.Event {
	f.mu.Lock()
	defer f.mu.Unlock()
	e := holdfast.Event{ID: holdfast.EventID(f.ids.New(holdfast.PrefixEvent)), Cursor: strconv.Itoa(len(f.hooked.events) + 1), Project: holdfast.ProjectDefault,
		Kind: kind, Resource: resource, At: f.now(), Object: `{"id":"` + resource + `"}`}
	f.hooked.events = append(f.hooked.events, e)
	f.broadcast()
	return e
}

// Bury makes an event a dead letter of a webhook.
func (f *Fake) Bury(webhook holdfast.WebhookID, e holdfast.Event) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.hooked.dead = append(f.hooked.dead, holdfast.DeadLetter{Webhook: webhook, Event: e.ID, Kind: e.Kind, Resource: e.Resource, Attempts: 1,
		LastError: "refused with status 400", QueuedAt: e.At, DiedAt: e.At})
}

// Act records a hook's action.
func (f *Fake) Act(a holdfast.HookAction) holdfast.HookAction {
	f.mu.Lock()
	defer f.mu.Unlock()
	a.ID, a.Project, a.CreatedAt, a.UpdatedAt = holdfast.HookActionID(f.ids.New(holdfast.PrefixHookAction)), holdfast.ProjectDefault, f.now(), f.now()
	f.hooked.actions = append(f.hooked.actions, a)
	return a
}

// StreamEvents yields what Happen recorded behind the cursor.
func (f *Fake) StreamEvents(ctx context.Context, _ holdfast.Caller, in holdfast.StreamEvents, yield func(holdfast.Event) error) error {
	if err := in.Validate(); err != nil {
		return err
	}
	seen := 0
	if in.After != "" {
		var err error
		if seen, err = strconv.Atoi(in.After); err != nil {
			return holdfast.E(holdfast.InvalidArgument, holdfast.ReasonBadField, "after is no cursor")
		}
	}
	for {
		var page []holdfast.Event
		var changed <-chan struct{}
		err := f.do(ctx, Call{"StreamEvents", in}, func() error {
			page = slices.Clone(f.hooked.events[min(seen, len(f.hooked.events)):])
			return nil
		})
		if err != nil {
			return err
		}
		f.mu.Lock()
		changed = f.changed
		fresh := len(f.hooked.events) > seen+len(page)
		f.mu.Unlock()
		for _, e := range page {
			if seen++; !holdfast.MatchKinds(in.Kinds, e.Kind) {
				continue
			}
			if err := yield(e); err != nil {
				return err
			}
		}
		if !in.Follow {
			return nil
		}
		if fresh {
			continue
		}
		if err := f.wait(ctx, changed); err != nil {
			return err
		}
	}
}

// ListDeliveries has one delivery.
func (f *Fake) ListDeliveries(ctx context.Context, _ holdfast.Caller, in holdfast.ListDeliveries) (out holdfast.DeliveryPage, err error) {
	err = f.do(ctx, Call{"ListDeliveries", in}, func() error {
		out.Deliveries = []holdfast.DeliveryRecord{{Source: "hook/gh", ID: "guid-1", Kind: "push", ReceivedAt: f.now(), Outcome: "applied: box"}}
		return nil
	})
	return out, err
}

// CreateWebhook makes one.
func (f *Fake) CreateWebhook(ctx context.Context, caller holdfast.Caller, in holdfast.CreateWebhook) (out holdfast.CreatedWebhook, err error) {
	if err := in.Validate(); err != nil {
		return out, err
	}
	err = f.do(ctx, Call{"CreateWebhook", in}, func() error {
		w := holdfast.Webhook{ID: holdfast.WebhookID(f.ids.New(holdfast.PrefixWebhook)), Project: caller.Project, Creator: caller.Name, URL: in.URL, Kinds: in.Kinds, CreatedAt: f.now()}
		f.hooked.webhooks = append(f.hooked.webhooks, w)
		out = holdfast.CreatedWebhook{Webhook: w, Secret: "whsec_c2VjcmV0"}
		return nil
	})
	return out, err
}

// ListWebhooks lists all on one page.
func (f *Fake) ListWebhooks(ctx context.Context, _ holdfast.Caller, in holdfast.ListWebhooks) (out holdfast.WebhookPage, err error) {
	err = f.do(ctx, Call{"ListWebhooks", in}, func() error {
		out.Webhooks = slices.Clone(f.hooked.webhooks)
		return nil
	})
	return out, err
}

// DeleteWebhook deletes one.
func (f *Fake) DeleteWebhook(ctx context.Context, _ holdfast.Caller, id holdfast.WebhookID) error {
	return f.do(ctx, Call{"DeleteWebhook", id}, func() error {
		n := len(f.hooked.webhooks)
		f.hooked.webhooks = slices.DeleteFunc(f.hooked.webhooks, func(w holdfast.Webhook) bool { return w.ID == id })
		if len(f.hooked.webhooks) == n {
			return unknown("webhook", string(id))
		}
		return nil
	})
}

// ListDeadLetters lists what Bury recorded, on one page.
func (f *Fake) ListDeadLetters(ctx context.Context, _ holdfast.Caller, in holdfast.ListDeadLetters) (out holdfast.DeadLetterPage, err error) {
	err = f.do(ctx, Call{"ListDeadLetters", in}, func() error {
		for _, d := range f.hooked.dead {
			if in.Webhook == "" || d.Webhook == in.Webhook {
				out.DeadLetters = append(out.DeadLetters, d)
			}
		}
		return nil
	})
	return out, err
}

// ReplayWebhook queues the named ones, or two pages of one event each.
func (f *Fake) ReplayWebhook(ctx context.Context, _ holdfast.Caller, in holdfast.ReplayWebhook) (out holdfast.Replayed, err error) {
	err = f.do(ctx, Call{"ReplayWebhook", in}, func() error {
		if len(in.Events) > 0 {
			out.Queued = len(in.Events)
			return nil
		}
		out.Queued = 1
		if in.After != "2" {
			out.Next = "2"
		}
		return nil
	})
	return out, err
}

// CreateHook makes one, once for a name.
func (f *Fake) CreateHook(ctx context.Context, caller holdfast.Caller, in holdfast.CreateHook) (out holdfast.CreatedHook, err error) {
	if err := in.Validate(); err != nil {
		return out, err
	}
	err = f.do(ctx, Call{"CreateHook", in}, func() error {
		for _, h := range f.hooked.hooks {
			if h.Name == in.Name {
				out.Hook = h
				return nil
			}
		}
		out.Hook = holdfast.Hook{Name: in.Name, Project: holdfast.ProjectID(in.Project), Kind: in.Kind, Rules: in.Rules, Creator: caller.Name, CreatedAt: f.now()}
		if out.Secret = in.Secret; out.Secret == "" {
			out.Secret = "whsec_c2VjcmV0"
		}
		f.hooked.hooks = append(f.hooked.hooks, out.Hook)
		return nil
	})
	return out, err
}

// ListHooks lists all on one page, by name.
func (f *Fake) ListHooks(ctx context.Context, _ holdfast.Caller, in holdfast.ListHooks) (out holdfast.HookPage, err error) {
	err = f.do(ctx, Call{"ListHooks", in}, func() error {
		out.Hooks = slices.SortedFunc(slices.Values(f.hooked.hooks), func(a, b holdfast.Hook) int { return strings.Compare(a.Name, b.Name) })
		return nil
	})
	return out, err
}

// DeleteHook deletes one.
func (f *Fake) DeleteHook(ctx context.Context, _ holdfast.Caller, name string) error {
	return f.do(ctx, Call{"DeleteHook", name}, func() error {
		n := len(f.hooked.hooks)
		f.hooked.hooks = slices.DeleteFunc(f.hooked.hooks, func(h holdfast.Hook) bool { return h.Name == name })
		if len(f.hooked.hooks) == n {
			return unknown("hook", name)
		}
		return nil
	})
}

// ListHookActions lists what Act recorded, newest first, on one page.
func (f *Fake) ListHookActions(ctx context.Context, _ holdfast.Caller, in holdfast.ListHookActions) (out holdfast.HookActionPage, err error) {
	err = f.do(ctx, Call{"ListHookActions", in}, func() error {
		for _, a := range slices.Backward(f.hooked.actions) {
			if (in.Hook == "" || in.Hook == a.Hook) && (len(in.States) == 0 || slices.Contains(in.States, a.State)) {
				out.Actions = append(out.Actions, a)
			}
		}
		return nil
	})
	return out, err
}

// RetryHookAction makes one PENDING.
func (f *Fake) RetryHookAction(ctx context.Context, _ holdfast.Caller, id holdfast.HookActionID) (out holdfast.HookAction, err error) {
	err = f.do(ctx, Call{"RetryHookAction", id}, func() error {
		for i := range f.hooked.actions {
			if a := &f.hooked.actions[i]; a.ID == id {
				a.State = holdfast.HookActionPending
				out = *a
				return nil
			}
		}
		return unknown("hook action", string(id))
	})
	return out, err
}
