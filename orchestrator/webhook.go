package orchestrator

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/delivery/outbox"
	"github.com/holdfast-dev/holdfast/store"
)

// replayPage bounds the events that one transaction of a replay queues.
const replayPage = 200

const webhookColumns = `id, project, creator, url, kinds, created_at`

func scanWebhook(scan func(...any) error) (holdfast.Webhook, error) {
	var w holdfast.Webhook
	var kinds string
	var created int64
	if err := scan(&w.ID, &w.Project, &w.Creator, &w.URL, &kinds, &created); err != nil {
		return w, err
	}
	w.CreatedAt = store.FromMicros(created)
	if kinds == "" {
		return w, nil
	}
	if err := json.Unmarshal([]byte(kinds), &w.Kinds); err != nil {
		return w, fmt.Errorf("webhook %s: %w", w.ID, err)
	}
	return w, nil
}

// oneWebhook finds a webhook of a project; "" is any.
func oneWebhook(ctx context.Context, tx store.Tx, project holdfast.ProjectID, id holdfast.WebhookID) (holdfast.Webhook, error) {
	w, err := scanWebhook(tx.QueryRowContext(ctx, `SELECT `+webhookColumns+` FROM webhook WHERE id = $1`, string(id)).Scan)
	if errors.Is(err, sql.ErrNoRows) || err == nil && project != "" && w.Project != project {
		return holdfast.Webhook{}, holdfast.E(holdfast.NotFound, holdfast.ReasonUnknown, "no webhook %s in this project", id).On(string(id))
	}
	if err != nil {
		return holdfast.Webhook{}, fmt.Errorf("read webhook %s: %w", id, err)
	}
	return w, nil
}

// CreateWebhook subscribes. Whoever loses the answer makes another, and deletes the
// one whose secret nobody has.
func (s *Service) CreateWebhook(ctx context.Context, caller holdfast.Caller, in holdfast.CreateWebhook) (holdfast.CreatedWebhook, error) {
	if err := in.Validate(); err != nil {
		return holdfast.CreatedWebhook{}, err
	}
	if err := s.reachable(in.URL); err != nil {
		return holdfast.CreatedWebhook{}, err
	}
	kinds, err := optionalJSON(in.Kinds, len(in.Kinds) == 0)
	if err != nil {
		return holdfast.CreatedWebhook{}, fmt.Errorf("create webhook: %w", err)
	}
	w := holdfast.Webhook{ID: holdfast.WebhookID(s.config.IDs.New(holdfast.PrefixWebhook)), Project: caller.Project, Creator: caller.Name, URL: in.URL, Kinds: in.Kinds}
	var begun bool
	err = s.update(ctx, "create webhook", func(tx store.Tx, _ time.Time) error {
		begun = false
		now, err := tx.Now(ctx)
		if err != nil {
			return err
		}
		if begun, err = recordEvents(ctx, tx, now, caller.Project); err != nil { // its lock makes the count below exact
			return err
		}
		var n int
		if err := tx.QueryRowContext(ctx, `SELECT COUNT(*) FROM webhook WHERE project = $1 AND id <> $2`, string(caller.Project), string(w.ID)).Scan(&n); err != nil {
			return fmt.Errorf("count webhooks: %w", err)
		}
		if n >= holdfast.MaxWebhooks {
			return holdfast.E(holdfast.ResourceExhausted, holdfast.ReasonQuota, "the project has %d webhooks, which is the most there can be: delete one", n).
				With("quota", "webhooks").With("limit", strconv.Itoa(holdfast.MaxWebhooks)).With("used", strconv.Itoa(n))
		}
		w.CreatedAt = now
		// The id is new for each call, so a conflict is this call's own commit of unknown outcome.
		_, err = tx.ExecContext(ctx, `INSERT INTO webhook (`+webhookColumns+`) VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT DO NOTHING`,
			string(w.ID), string(w.Project), w.Creator, w.URL, kinds, store.Micros(now))
		if err != nil {
			return fmt.Errorf("insert webhook: %w", err)
		}
		return nil
	})
	if err != nil {
		return holdfast.CreatedWebhook{}, err
	}
	if err := s.listened(ctx, begun); err != nil {
		return holdfast.CreatedWebhook{}, err
	}
	s.outbox.begin()
	return holdfast.CreatedWebhook{Webhook: w, Secret: s.webhookSecretText(w.ID)}, nil
}

// ListWebhooks pages by id.
func (s *Service) ListWebhooks(ctx context.Context, caller holdfast.Caller, in holdfast.ListWebhooks) (holdfast.WebhookPage, error) {
	if err := in.Validate(); err != nil {
		return holdfast.WebhookPage{}, err
	}
	size := pageOf(in.PageSize)
	var page holdfast.WebhookPage
	err := s.view(ctx, "list webhooks", func(tx store.Tx, _ time.Time) error {
		page = holdfast.WebhookPage{}
		list, err := gather(ctx, tx, scanWebhook, `SELECT `+webhookColumns+` FROM webhook WHERE project = $1 AND id > $2 ORDER BY id LIMIT $3`,
			string(caller.Project), in.PageToken, size+1)
		if len(list) > size {
			list = list[:size]
			page.NextPageToken = string(list[size-1].ID)
		}
		page.Webhooks = list
		return err
	})
	return page, err
}

// DeleteWebhook ends a subscription. What was queued for it is dead by then, and
// swept away.
func (s *Service) DeleteWebhook(ctx context.Context, caller holdfast.Caller, id holdfast.WebhookID) error {
	if err := holdfast.CheckID("id", holdfast.PrefixWebhook, string(id)); err != nil {
		return err
	}
	return s.update(ctx, "delete webhook", func(tx store.Tx, _ time.Time) error {
		if _, err := oneWebhook(ctx, tx, caller.Project, id); err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, `DELETE FROM webhook WHERE id = $1`, string(id)); err != nil {
			return fmt.Errorf("delete webhook %s: %w", id, err)
		}
		return nil
	})
}

// ListDeadLetters pages what was given up, webhook by webhook.
func (s *Service) ListDeadLetters(ctx context.Context, caller holdfast.Caller, in holdfast.ListDeadLetters) (holdfast.DeadLetterPage, error) {
	if err := in.Validate(); err != nil {
		return holdfast.DeadLetterPage{}, err
	}
	from, after, err := splitToken(in.PageToken)
	if err != nil {
		return holdfast.DeadLetterPage{}, err
	}
	size := pageOf(in.PageSize)
	var page holdfast.DeadLetterPage
	err = s.view(ctx, "list dead letters", func(tx store.Tx, _ time.Time) error {
		page = holdfast.DeadLetterPage{}
		hooks, err := s.hooksOf(ctx, tx, caller.Project, in.Webhook, from)
		for _, w := range hooks {
			place := outbox.Ref{Destination: string(w.ID)}
			if place.Destination == from {
				place.ID = after
			}
			rows, err := outbox.List(ctx, tx, outbox.Filter{State: outbox.Dead, Destination: string(w.ID), After: place, Limit: size - len(page.DeadLetters)})
			if err != nil {
				return err
			}
			for _, r := range rows {
				page.DeadLetters = append(page.DeadLetters, deadLetter(r))
			}
			if len(page.DeadLetters) == size {
				last := page.DeadLetters[size-1]
				page.NextPageToken = joinToken(string(last.Webhook), string(last.Event))
				return nil
			}
		}
		return err
	})
	return page, err
}

// hooksOf are the project's webhooks from an id on, or the one that is named.
func (s *Service) hooksOf(ctx context.Context, tx store.Tx, project holdfast.ProjectID, id holdfast.WebhookID, from string) ([]holdfast.Webhook, error) {
	if id == "" {
		return gather(ctx, tx, scanWebhook, `SELECT `+webhookColumns+` FROM webhook WHERE project = $1 AND id >= $2 ORDER BY id`, string(project), from)
	}
	w, err := oneWebhook(ctx, tx, project, id)
	return []holdfast.Webhook{w}, err
}

func deadLetter(r outbox.Row) holdfast.DeadLetter {
	return holdfast.DeadLetter{Webhook: holdfast.WebhookID(r.Destination), Event: holdfast.EventID(r.ID), Kind: holdfast.EventKind(r.Kind), Resource: r.Key,
		Attempts: r.Attempts, LastError: r.LastError, QueuedAt: r.EnqueuedAt, DiedAt: r.EndedAt}
}

// ReplayWebhook queues events again: one page behind a cursor, or those that are
// named. They go under their ids and in their order, so that a receiver knows those
// it took before.
func (s *Service) ReplayWebhook(ctx context.Context, caller holdfast.Caller, in holdfast.ReplayWebhook) (holdfast.Replayed, error) {
	if err := in.Validate(); err != nil {
		return holdfast.Replayed{}, err
	}
	r := eventReader{Service: s, project: caller.Project}
	if err := r.from(in.After); err != nil {
		return holdfast.Replayed{}, err
	}
	for more := len(in.Events) == 0; more; { // what has no number yet is behind every cursor
		var err error
		if more, err = s.numberEvents(ctx, caller.Project); err != nil {
			return holdfast.Replayed{}, err
		}
	}
	var out holdfast.Replayed
	err := s.update(ctx, "replay webhook", func(tx store.Tx, now time.Time) error {
		out = holdfast.Replayed{}
		w, err := oneWebhook(ctx, tx, caller.Project, in.ID)
		if err != nil {
			return err
		}
		if len(in.Events) > 0 {
			out.Queued, err = replayNamed(ctx, tx, now, w, in.Events)
			return err
		}
		at := r // read anew if the transaction runs again
		list, err := at.page(ctx, tx, replayPage)
		if err != nil {
			return err
		}
		if len(list) == replayPage {
			out.Next = strconv.FormatInt(list[replayPage-1].sequence, 10)
		}
		out.Queued, err = requeue(ctx, tx, now, w, list)
		return err
	})
	if err == nil && out.Queued > 0 {
		s.outbox.wake()
	}
	return out, err
}

func requeue(ctx context.Context, tx store.Tx, now time.Time, w holdfast.Webhook, list []recordedEvent) (queued int, err error) {
	for _, e := range list {
		if !holdfast.MatchKinds(w.Kinds, e.Kind) {
			continue
		}
		row, err := e.outgoing(w.ID)
		if err != nil {
			return 0, err
		}
		changed, err := outbox.Requeue(ctx, tx, row, now)
		if err != nil {
			return 0, err
		}
		if changed {
			queued++
		}
	}
	return queued, nil
}

// replayNamed queues events by their ids: dead letters outlive their events.
func replayNamed(ctx context.Context, tx store.Tx, now time.Time, w holdfast.Webhook, ids []holdfast.EventID) (queued int, err error) {
	for _, id := range ids {
		err := outbox.Replay(ctx, tx, outbox.Ref{Destination: string(w.ID), ID: string(id)}, now)
		switch {
		case errors.Is(err, outbox.ErrNotEnded):
			continue // on its way
		case errors.Is(err, outbox.ErrUnknown):
			e, err := scanEvent(tx.QueryRowContext(ctx, `SELECT `+eventColumns+` FROM event WHERE id = $1 AND project = $2`, string(id), string(w.Project)).Scan)
			if errors.Is(err, sql.ErrNoRows) {
				return 0, holdfast.E(holdfast.NotFound, holdfast.ReasonUnknown, "no event %s for webhook %s: events are kept for %s", id, w.ID, holdfast.EventsKept).On(string(id))
			}
			if err != nil {
				return 0, fmt.Errorf("read event %s: %w", id, err)
			}
			n, err := requeue(ctx, tx, now, w, []recordedEvent{e})
			if err != nil {
				return 0, err
			}
			queued += n
			continue
		case err != nil:
			return 0, err
		}
		queued++
	}
	return queued, nil
}

// webhookSecretText is the secret as Standard Webhooks' libraries take it.
func (s *Service) webhookSecretText(id holdfast.WebhookID) string {
	return secretPrefix + base64Of(s.webhookSecret(id))
}

// secretPrefix begins every secret of a webhook, so that one in a log is known for one.
const secretPrefix = "whsec_"

// trimSecret takes the secret of a Standard Webhooks sender apart: base64 after the
// prefix, or what it is.
func trimSecret(text string) []byte {
	encoded, ok := strings.CutPrefix(text, secretPrefix)
	if raw, err := fromBase64(encoded); ok && err == nil && len(raw) > 0 {
		return raw
	}
	return []byte(text)
}
