package orchestrator

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"mime"
	"net/http"
	"net/url"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/delivery"
	"github.com/holdfast-dev/holdfast/delivery/inbox"
	"github.com/holdfast-dev/holdfast/hook"
	"github.com/holdfast-dev/holdfast/store"
)

// hookSource names a hook in the inbox.
func hookSource(name string) string { return "hook/" + name }

// HookHandler serves POST /hooks/{source}, where providers' webhooks come in (H10):
// 404 for an unknown source, 401 for what is not signed as its kind says, 413 for more
// than 1 MiB, 400 for what is no JSON, 503 where it could not be recorded; 202 once
// what is to be done is durable, and for every repeat (contract: B3, B9).
func (s *Service) HookHandler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /hooks/{source}", func(w http.ResponseWriter, r *http.Request) {
		status, err := s.hooked(w, r)
		if err != nil {
			s.config.Logger.LogAttrs(r.Context(), slog.LevelWarn, "webhook not accepted", slog.String("source", r.PathValue("source")),
				slog.Int("status", status), slog.Any("error", err))
			http.Error(w, hookAnswer(status, err), status)
			return
		}
		w.WriteHeader(status)
	})
	return mux
}

// hookAnswer keeps what went wrong here to our log.
func hookAnswer(status int, err error) string {
	if status >= http.StatusInternalServerError {
		return "not accepted, try again"
	}
	return err.Error()
}

func (s *Service) hooked(w http.ResponseWriter, r *http.Request) (status int, err error) {
	name := r.PathValue("source")
	if holdfast.CheckHookName("source", name) != nil {
		return http.StatusNotFound, errors.New("no such source")
	}
	h, secret, err := s.openHook(r.Context(), name)
	if holdfast.CodeOf(err) == holdfast.NotFound {
		return http.StatusNotFound, errors.New("no such source")
	}
	if err != nil {
		return http.StatusServiceUnavailable, err
	}
	body, err := delivery.Read(w, r, holdfast.MaxHookBody)
	if err != nil {
		return delivery.StatusOf(err), err
	}
	d, err := receive(h, secret, r.Header, body, s.databaseClock())
	if err != nil {
		return delivery.StatusOf(err), err
	}
	if err := s.accept(r.Context(), h, d, body); err != nil {
		return http.StatusServiceUnavailable, err
	}
	return http.StatusAccepted, nil
}

// receive authenticates a provider's webhook and reads it. It is pure.
func receive(h holdfast.Hook, secret string, header http.Header, body []byte, now time.Time) (d hook.Delivery, err error) {
	d.Hook = h.Name
	payload := body
	if h.Kind == holdfast.HookGitHub {
		if d.ID, d.Event, err = receiveGitHub(secret, header, body); err == nil {
			payload, err = formPayload(header, body)
		}
	} else {
		var signed delivery.Signed
		signed, err = delivery.Verify(trimSecret(secret), header, body, delivery.WithTolerance(now, delivery.ThirdPartyTolerance))
		d.ID = signed.ID
	}
	if err != nil {
		return d, err
	}
	if d.Payload, err = decodePayload(payload); err != nil {
		return d, err
	}
	if h.Kind == holdfast.HookStandard {
		if object, ok := d.Payload.(map[string]any); ok {
			d.Event, _ = object["type"].(string)
		}
	}
	if len(d.Event) > holdfast.MaxName || strings.ContainsRune(d.Event, 0) {
		return d, fmt.Errorf("%w: the event's name has more than %d bytes, or NUL", delivery.ErrMalformed, holdfast.MaxName)
	}
	return d, nil
}

// receiveGitHub checks GitHub's signature, of the body alone: the delivery's id is not
// signed, and a repeat is known by it only because nobody else has the body.
func receiveGitHub(secret string, header http.Header, body []byte) (id, event string, err error) {
	encoded, ok := strings.CutPrefix(header.Get("X-Hub-Signature-256"), "sha256=")
	got, err := hex.DecodeString(encoded)
	m := hmac.New(sha256.New, []byte(secret))
	m.Write(body)
	if !ok || err != nil || !hmac.Equal(got, m.Sum(nil)) {
		return "", "", fmt.Errorf("%w: X-Hub-Signature-256 does not match", delivery.ErrUnauthenticated)
	}
	id, event = header.Get("X-GitHub-Delivery"), header.Get("X-GitHub-Event")
	if holdfast.CheckRequestID("X-GitHub-Delivery", id) != nil {
		return "", "", fmt.Errorf("%w: X-GitHub-Delivery is no id of 1 to %d visible characters", delivery.ErrMalformed, holdfast.MaxRequestID)
	}
	return id, event, nil
}

// formPayload takes the JSON out of the form that GitHub sends where it is not told
// to send JSON.
func formPayload(header http.Header, body []byte) ([]byte, error) {
	kind, _, err := mime.ParseMediaType(header.Get("Content-Type"))
	if err != nil || kind != "application/x-www-form-urlencoded" {
		return body, nil //nolint:nilerr // what is no form has to be JSON, which is seen next
	}
	form, err := url.ParseQuery(string(body))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", delivery.ErrMalformed, err)
	}
	return []byte(form.Get("payload")), nil
}

func decodePayload(raw []byte) (payload any, err error) {
	if !utf8.Valid(raw) {
		return nil, fmt.Errorf("%w: it is not UTF-8", delivery.ErrMalformed)
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	if err := d.Decode(&payload); err != nil {
		return nil, fmt.Errorf("%w: it is no JSON: %w", delivery.ErrMalformed, err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%w: there is more after the JSON value", delivery.ErrMalformed)
	}
	return payload, nil
}

// accept records the delivery and what is to be done about it, in one transaction: a
// repeat does neither again (contract: B3, B4, trap T16). Nothing is done in it that
// could wait for anybody.
func (s *Service) accept(ctx context.Context, h holdfast.Hook, d hook.Delivery, body []byte) error {
	rules, err := hook.Parse(h.Rules)
	if err != nil {
		return err
	}
	plans := rules.Plan(d)
	return s.update(ctx, "webhook", func(tx store.Tx, now time.Time) error {
		fresh, err := inbox.Record(ctx, tx, inbox.Delivery{Source: hookSource(h.Name), ID: d.ID, Kind: d.Event, ReceivedAt: now, Body: body, Outcome: acceptedAs(plans)})
		if err != nil || !fresh {
			return err
		}
		for _, plan := range plans {
			if err := s.insertAction(ctx, tx, now, h, d, plan); err != nil {
				return err
			}
		}
		if u, ok := tx.(*unit); ok && len(plans) > 0 {
			u.soon(s.actSoon)
		}
		return nil
	})
}

func acceptedAs(plans []hook.Plan) string {
	if len(plans) == 0 {
		return "ignored: no rule matches"
	}
	rules := make([]string, len(plans))
	for i, plan := range plans {
		rules[i] = plan.Rule
	}
	return "applied: " + strings.Join(rules, ", ")
}
