package holdfast

import (
	"context"
	"net/url"
	"strings"
	"time"
)

// Limits of webhooks.
const (
	MaxWebhooks   = 50                  // of a project
	MaxWebhookURL = 2048                // bytes
	WebhookMaxAge = 5 * 24 * time.Hour  // of an event, after which its next failure is its last
	WebhookCap    = 6 * time.Hour       // the longest pause between two attempts, whatever a receiver asks for
	DeadKept      = 30 * 24 * time.Hour // of a dead letter
)

// Webhook is a project's subscription: its events are posted to a URL, signed as
// Standard Webhooks say, in order for each resource (contract: B8, B9).
type Webhook struct {
	ID        WebhookID
	Project   ProjectID
	Creator   string
	URL       string
	Kinds     []string // see MatchKinds; empty: all
	CreatedAt time.Time
}

// CreateWebhook is the input of a webhook's create. It has no request id: a repeat
// makes another (contract: A3).
type CreateWebhook struct {
	URL   string
	Kinds []string // see MatchKinds; empty: all
}

// CreatedWebhook is a new webhook with the secret, whsec_…, that signs what it is
// sent; it is told this once.
type CreatedWebhook struct {
	Webhook Webhook
	Secret  string
}

// ListWebhooks pages by id.
type ListWebhooks struct {
	PageSize  int // zero: 50; at most 1000
	PageToken string
}

// WebhookPage is one page; NextPageToken is "" on the last.
type WebhookPage struct {
	Webhooks      []Webhook
	NextPageToken string
}

// ListDeadLetters pages events that were given up, by webhook and event.
type ListDeadLetters struct {
	Webhook   WebhookID // "": of every webhook of the project
	PageSize  int       // zero: 50; at most 1000
	PageToken string
}

// DeadLetter is an event that a receiver refused, or did not take in time.
type DeadLetter struct {
	Webhook   WebhookID
	Event     EventID
	Kind      EventKind
	Resource  string
	Attempts  int
	LastError string
	QueuedAt  time.Time
	DiedAt    time.Time
}

// DeadLetterPage is one page; NextPageToken is "" on the last.
type DeadLetterPage struct {
	DeadLetters   []DeadLetter
	NextPageToken string
}

// ReplayWebhook sends events again, under their ids: those behind a cursor, or the
// ones that are named, such as dead letters. What is still to be sent stays so.
type ReplayWebhook struct {
	ID     WebhookID
	After  string    // a Cursor; "" with no Events: from the oldest that is kept
	Events []EventID // at most MaxPageSize; then After is ""
}

// Replayed says how far a replay is.
type Replayed struct {
	Queued int
	Next   string // the cursor to go on after; "" when all are queued
}

// WebhookService manages the subscriptions of the caller's project.
type WebhookService interface {
	// CreateWebhook returns once every change that a later call makes is sent.
	CreateWebhook(ctx context.Context, caller Caller, in CreateWebhook) (CreatedWebhook, error)
	ListWebhooks(ctx context.Context, caller Caller, in ListWebhooks) (WebhookPage, error)
	// DeleteWebhook ends one, and what it was still to be sent.
	DeleteWebhook(ctx context.Context, caller Caller, id WebhookID) error
	ListDeadLetters(ctx context.Context, caller Caller, in ListDeadLetters) (DeadLetterPage, error)
	// ReplayWebhook queues one page; Next goes on.
	ReplayWebhook(ctx context.Context, caller Caller, in ReplayWebhook) (Replayed, error)
}

// Validate checks the URL and the filter. Whether its host may be called is the
// server's to say.
func (in CreateWebhook) Validate() error {
	if len(in.URL) > MaxWebhookURL {
		return bad("url", "has %d bytes; at most %d are allowed", len(in.URL), MaxWebhookURL)
	}
	u, err := url.Parse(in.URL)
	switch {
	case err != nil || u.Hostname() == "" || u.Scheme != "http" && u.Scheme != "https" || strings.ContainsFunc(in.URL, invisible):
		return bad("url", "%q is no URL such as https://example.com/holdfast", shown(in.URL))
	case u.User != nil:
		return bad("url", "has a user or a password in it; what is sent is signed, check that instead")
	case u.Fragment != "":
		return bad("url", "has a fragment (#…), which is never sent")
	}
	return checkKinds("kinds", in.Kinds)
}

// Validate checks the page.
func (in ListWebhooks) Validate() error {
	if in.PageToken != "" && CheckID("page_token", PrefixWebhook, in.PageToken) != nil {
		return bad("page_token", "is none that a list returned")
	}
	return checkPage(in.PageSize, in.PageToken)
}

// Validate checks the filter and the page.
func (in ListDeadLetters) Validate() error {
	if in.Webhook != "" {
		if err := CheckID("webhook", PrefixWebhook, string(in.Webhook)); err != nil {
			return err
		}
	}
	return checkPage(in.PageSize, in.PageToken)
}

// Validate checks the id, and that it says one thing.
func (in ReplayWebhook) Validate() error {
	if err := CheckID("id", PrefixWebhook, string(in.ID)); err != nil {
		return err
	}
	switch {
	case len(in.Events) > 0 && in.After != "":
		return bad("after", "is given beside events: name the events, or the cursor that they are behind")
	case len(in.Events) > MaxPageSize:
		return bad("events", "has %d; at most %d are allowed", len(in.Events), MaxPageSize)
	}
	for _, id := range in.Events {
		if err := CheckID("events", PrefixEvent, string(id)); err != nil {
			return err
		}
	}
	return StreamEvents{After: in.After}.Validate()
}
