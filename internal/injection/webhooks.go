package injection

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/delivery"
	"github.com/holdfast-dev/holdfast/transport"
)

// subscriber takes what a webhook is sent, and answers as told.
type subscriber struct {
	mu     sync.Mutex
	ids    []string
	answer func(nth int, id string, w http.ResponseWriter) // nth from 1, of that id
}

// ServeHTTP notes the delivery's id.
func (s *subscriber) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	id := r.Header.Get(delivery.HeaderID)
	s.ids = append(s.ids, id)
	n := len(slices.DeleteFunc(slices.Clone(s.ids), func(other string) bool { return other != id }))
	s.answer(n, id, w)
}

func (s *subscriber) came() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.ids)
}

// subscribed runs an experiment with a webhook to a subscriber, and a sandbox whose
// creation it hears of in two events.
func subscribed(answer func(nth int, id string, w http.ResponseWriter), run func(l *lab, s *subscriber, w holdfast.Webhook) (string, error)) func(*lab) (string, error) {
	return func(l *lab) (string, error) {
		s := &subscriber{answer: answer}
		at := httptest.NewServer(s)
		defer at.Close()
		w, err := l.client.CreateWebhook(l, holdfast.CreateWebhook{URL: at.URL, Kinds: []string{"sandbox.created", "sandbox.ready"}})
		if err == nil {
			_, err = l.create("told")
		}
		if err != nil {
			return "", err
		}
		return run(l, s, w.Webhook)
	}
}

// outgoing are the events that webhooks are sent (H9).
func outgoing() []experiment {
	return []experiment{
		{hop: "H9", message: "events", cell: Twice, does: "the answer to each event is lost once", run: subscribed(
			func(nth int, _ string, w http.ResponseWriter) {
				if nth == 1 {
					panic(http.ErrAbortHandler) // the connection breaks: taken, and not answered
				}
			}, func(l *lab, s *subscriber, _ holdfast.Webhook) (string, error) {
				err := l.until("both events came twice", func() (bool, error) { return len(s.came()) >= 4, nil })
				ids := s.came()
				if err == nil && (len(ids) != 4 || ids[0] != ids[1] || ids[2] != ids[3] || ids[0] == ids[2]) {
					err = fmt.Errorf("came: %q", ids)
				}
				return seen(err, "each came again under its id, and the second when the first was taken")
			})},
		{hop: "H9", message: "events", cell: Late, does: "the first event is refused for now, twice", run: subscribed(
			func(nth int, _ string, w http.ResponseWriter) {
				if nth < 3 {
					w.WriteHeader(http.StatusServiceUnavailable)
				}
			}, func(l *lab, s *subscriber, _ holdfast.Webhook) (string, error) {
				err := l.until("both events were taken", func() (bool, error) { return len(s.came()) >= 6, nil })
				ids := s.came()
				if err == nil && (len(slices.Compact(ids)) != 2) {
					err = fmt.Errorf("came: %q", ids)
				}
				return seen(err, "the sandbox's second event waited for its first")
			})},
		{hop: "H9", message: "events", cell: Never, does: "every event is refused for good", run: subscribed(
			func(nth int, _ string, w http.ResponseWriter) {
				if nth == 1 {
					w.WriteHeader(http.StatusUnprocessableEntity)
				}
			}, func(l *lab, s *subscriber, w holdfast.Webhook) (string, error) {
				var page holdfast.DeadLetterPage
				err := l.until("both are dead letters", func() (bool, error) {
					var err error
					page, err = l.client.ListDeadLetters(l, holdfast.ListDeadLetters{Webhook: w.ID})
					return err == nil && len(page.DeadLetters) == 2, err
				})
				if err != nil {
					return "", err
				}
				again := holdfast.ReplayWebhook{ID: w.ID, Events: []holdfast.EventID{page.DeadLetters[0].Event, page.DeadLetters[1].Event}}
				if _, err = l.client.ReplayWebhook(l, again); err == nil {
					err = l.until("both came once more", func() (bool, error) { return len(s.came()) == 4, nil })
				}
				return seen(err, "two dead letters, which a replay sent")
			})},
	}
}

const (
	hookSecret = "an experiment's"
	hookRules  = "rules: [{name: box, event: push, create_sandbox: {environment: base}}]"
)

// hooked makes the hook that experiments post to.
func (l *lab) hooked() error {
	_, err := l.client.CreateHook(l, holdfast.CreateHook{Name: "gh", Kind: holdfast.HookGitHub, Secret: hookSecret, Rules: hookRules})
	return err
}

// provides posts a webhook as a provider would, and wants it taken.
func (l *lab) provides(id string) error {
	const body = `{"ref":"refs/heads/main"}`
	r, err := http.NewRequestWithContext(l, http.MethodPost, l.server.URL()+"/hooks/gh", strings.NewReader(body))
	if err != nil {
		return err
	}
	m := hmac.New(sha256.New, []byte(hookSecret))
	m.Write([]byte(body))
	r.Header.Set("X-Hub-Signature-256", "sha256="+hex.EncodeToString(m.Sum(nil)))
	r.Header.Set("X-GitHub-Delivery", id)
	r.Header.Set("X-GitHub-Event", "push")
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		return err
	}
	if err := res.Body.Close(); err != nil {
		return err
	}
	if res.StatusCode != http.StatusAccepted {
		return fmt.Errorf("answered %d", res.StatusCode)
	}
	return nil
}

// provided is the one sandbox that webhooks made, once their actions are done.
func (l *lab) provided() (holdfast.Sandbox, error) {
	var page holdfast.HookActionPage
	err := l.until("the webhook's one action is done", func() (bool, error) {
		var err error
		page, err = l.client.ListHookActions(l, holdfast.ListHookActions{})
		return err == nil && len(page.Actions) == 1 && page.Actions[0].State == holdfast.HookActionDone, err
	})
	if err != nil {
		return holdfast.Sandbox{}, err
	}
	return l.client.GetSandbox(l, holdfast.SandboxID(page.Actions[0].Resources[0]))
}

// incoming are the webhooks of providers (H10).
func incoming() []experiment {
	return []experiment{
		{hop: "H10", message: "webhooks", cell: Twice, does: "a webhook arrives twice at the same time", run: func(l *lab) (string, error) {
			if err := l.hooked(); err != nil {
				return "", err
			}
			second := make(chan error, 1)
			go func() { second <- l.provides("one") }()
			err := errors.Join(l.provides("one"), <-second)
			if err != nil {
				return "", err
			}
			sb, err := l.provided()
			if err == nil {
				err = l.once(sb)
			}
			return seen(err, "answered 202 twice: one sandbox, one boot")
		}},
		{hop: "H10", message: "webhooks", cell: Late, does: "a webhook arrives again when what it made is deleted", run: func(l *lab) (string, error) {
			err := l.hooked()
			if err == nil {
				err = l.provides("late")
			}
			if err != nil {
				return "", err
			}
			sb, err := l.provided()
			if err == nil {
				_, err = l.client.DeleteSandbox(l, holdfast.MutateSandbox{ID: sb.ID})
			}
			boots := l.machine.bootsInAll()
			if err == nil {
				err = l.provides("late")
			}
			if err != nil {
				return "", err
			}
			if _, err := l.provided(); err != nil {
				return "", err
			}
			if n := l.machine.bootsInAll() - boots; n != 0 {
				return "", fmt.Errorf("%d more booted", n)
			}
			return "answered 202, nothing done", nil
		}},
		{hop: "H10", message: "webhooks", cell: Never, does: "what a webhook asks for cannot be done while the fleet is away", run: func(l *lab) (string, error) {
			if err := l.hooked(); err != nil {
				return "", err
			}
			fault := l.wire.always(transport.Drop, about{path: "/fleet/ensure"})
			if err := l.provides("never"); err != nil {
				return "", err
			}
			err := l.until("it was tried", func() (bool, error) { return fault.count() > 0, nil })
			if err != nil {
				return "", err
			}
			l.wire.lift(fault)
			began := time.Now()
			sb, err := l.provided()
			if err == nil {
				err = l.once(sb)
			}
			return seen(err, "done %s after the hop was back; one boot", since(began))
		}},
	}
}
