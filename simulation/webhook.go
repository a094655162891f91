package simulation

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/delivery"
	"github.com/holdfast-dev/holdfast/simulation/step"
)

// Webhooks both ways: what providers say comes in at /hooks/NAME, and what happens in
// the default project goes out to a receiver.

// The verbs. A slot is a delivery of a provider's: the same id and body each time.
const (
	Deliver Verb = "deliver"
	Forge   Verb = "forge" // a delivery that is signed with another secret
)

// eventSlots is how many deliveries there are: of each hook, each kind of event twice.
const eventSlots = 12

// The hooks, and what their providers sign with.
const (
	githubHook   = "code"
	standardHook = "pager"
	hookSecret   = "a secret of providers, which forgers do not have"
)

// The events: of one comes a session and a task in it, of one a sandbox, of one nothing.
const (
	eventOpened = "opened"
	eventPushed = "pushed"
	eventClosed = "closed"
)

const hookRules = `rules:
- name: work
  event: ` + eventOpened + `
  create_session: {environment: ` + environment + `, name: "${type}"}
  submit_task:
    command: /bin/sh
    args: ["-c", "echo ` + working + `; sleep 2s"]
    limit: 5m
    env: {` + TaskVariable + `: "${holdfast.hook} ${holdfast.delivery}"}
- name: box
  event: ` + eventPushed + `
  create_sandbox: {environment: ` + environment + `, ttl: 6m}
`

// Opened is the slot of a delivery of which come a session and a task in it.
const Opened = 0

// provided is a provider's delivery.
type provided struct {
	hook, id, event string
	body            []byte
}

func providedBy(slot int) provided {
	p := provided{hook: []string{githubHook, standardHook}[slot%2], id: "delivery-" + strconv.Itoa(slot), event: []string{eventOpened, eventPushed, eventClosed}[slot/2%3]}
	p.body = []byte(`{"type":"` + p.event + `","number":` + strconv.Itoa(slot) + `}`)
	return p
}

// rule is the one that an event matches; "" is none.
func (p provided) rule() string {
	return map[string]string{eventOpened: "work", eventPushed: "box"}[p.event]
}

// request is one attempt of it.
func (p provided) request(ctx context.Context, secret string) (*http.Request, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://orchestrators.sim/hooks/"+p.hook, bytes.NewReader(p.body))
	if err != nil {
		return nil, err
	}
	r.Header.Set("Content-Type", "application/json")
	if p.hook == standardHook {
		for name, values := range delivery.Sign([]byte(secret), p.id, time.Now(), p.body) {
			r.Header[name] = values
		}
		return r, nil
	}
	m := hmac.New(sha256.New, []byte(secret))
	m.Write(p.body)
	r.Header.Set("X-Hub-Signature-256", "sha256="+hex.EncodeToString(m.Sum(nil)))
	r.Header.Set("X-Github-Delivery", p.id)
	r.Header.Set("X-Github-Event", p.event)
	return r, nil
}

// Deliver sends a provider's delivery, once, and returns the status of the answer. With
// forged it is signed with another secret.
func (w *World) Deliver(ctx context.Context, c *Client, slot int, forged bool) (status int, err error) {
	secret := hookSecret
	if forged {
		secret = "what a forger takes for it"
	}
	req, err := providedBy(slot).request(ctx, secret)
	if err != nil {
		return 0, err
	}
	way := &http.Client{Transport: &step.Transport{Next: &wire{world: w}, Party: c.Name, Hook: clientHook{c.Party}}}
	res, err := way.Do(req)
	if err != nil {
		return 0, err
	}
	_, err = io.Copy(io.Discard, res.Body)
	if err = errors.Join(err, res.Body.Close()); err == nil && res.StatusCode >= 300 {
		err = fmt.Errorf("simulation: answered %d", res.StatusCode)
	}
	return res.StatusCode, err
}

// deliver makes a client's call. The answer's state is the status.
func (r *runner) deliver(ctx context.Context, c *Client, o *Outcome) {
	status, err := r.world.Deliver(ctx, c, o.Op.Slot, o.Op.Verb == Forge)
	if o.Err = err; status > 0 {
		o.Answer.State = strconv.Itoa(status)
	}
	r.judgeDelivery(o)
}

// judgeDelivery: a provider's own word is taken, and a forger's is not.
func (r *runner) judgeDelivery(o *Outcome) {
	if o.Answer.State == "" || strings.HasPrefix(o.Answer.State, "5") { // nobody knows, or it is to come again
		return
	}
	want := http.StatusAccepted
	if o.Op.Verb == Forge {
		want = http.StatusUnauthorized
	}
	if o.Answer.State != strconv.Itoa(want) {
		r.violated("a provider's %s of slot %d was answered %s", o.Op.Verb, o.Op.Slot, o.Answer.State)
	}
}

// Webhooks makes the hooks, and the receiver of the default project's webhook, before
// anything goes wrong. From then on Check holds them against what is to be at rest.
func (w *World) Webhooks(ctx context.Context, c *Client) error {
	for name, kind := range map[string]holdfast.HookKind{githubHook: holdfast.HookGitHub, standardHook: holdfast.HookStandard} {
		_, err := c.CreateHook(ctx, holdfast.CreateHook{Name: name, Kind: kind, Secret: hookSecret, Rules: hookRules})
		if err != nil {
			return fmt.Errorf("simulation: create a hook: %w", err)
		}
	}
	made, err := c.CreateWebhook(ctx, holdfast.CreateWebhook{URL: "http://" + receiverName + ".sim/events"})
	if err != nil {
		return fmt.Errorf("simulation: create a webhook: %w", err)
	}
	w.receiver = newReceiver(w)
	return w.receiver.of(made)
}

// receiverName is in the URL of the webhook.
const receiverName = "receiver"

// receiver is whoever is sent the events of a project. It counts an event once it has
// answered that it has it.
type receiver struct {
	world *World

	mu     sync.Mutex
	secret []byte
	tries  map[string]int // by event
	got    []received     // in their order
	wrong  []string
}

// received is one event that was accepted.
type received struct {
	event, resource string
	at              time.Time
}

func newReceiver(w *World) *receiver {
	x := &receiver{world: w, tries: map[string]int{}}
	w.network.Handle(receiverName+".sim", http.HandlerFunc(x.serve))
	return x
}

func (x *receiver) of(w holdfast.CreatedWebhook) error {
	secret, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(w.Secret, "whsec_"))
	if err != nil {
		return fmt.Errorf("simulation: the secret of a webhook: %w", err)
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.secret = secret
	return nil
}

// The receiver's troubles, each at the first try of one event in eight.
const (
	receiverRefuses = "receiver refuses" // 503, and does not have it
	receiverForgets = "receiver forgets" // it has it, and says 500
	receiverHangs   = "receiver hangs"
)

func receiverTroubles() []string { return []string{receiverRefuses, receiverForgets, receiverHangs} }

func (x *receiver) serve(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // the sender is gone
	}
	x.mu.Lock()
	signed, err := delivery.Verify(x.secret, r.Header, body, delivery.WithTolerance(time.Now(), delivery.ThirdPartyTolerance))
	if err != nil {
		x.wrong = append(x.wrong, "the receiver cannot verify what it is sent: "+err.Error())
	}
	x.tries[signed.ID]++
	first := x.tries[signed.ID] == 1
	x.mu.Unlock()
	trouble := ""
	all := receiverTroubles()
	if n := hash(x.world.config.Seed, "receiver", signed.ID) % 8; first && n < uint64(len(all)) {
		trouble = all[n]
		x.world.count(trouble)
	}
	switch trouble {
	case receiverRefuses:
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	case receiverHangs:
		<-r.Context().Done()
		return
	}
	x.has(signed.ID, body)
	if trouble == receiverForgets {
		w.WriteHeader(http.StatusInternalServerError)
	}
}

func (x *receiver) has(id string, body []byte) {
	var envelope struct {
		Data struct {
			Event, Resource string
			At              time.Time
		} `json:"data"`
	}
	err := json.Unmarshal(body, &envelope)
	x.mu.Lock()
	defer x.mu.Unlock()
	if err != nil || envelope.Data.Event != id {
		x.wrong = append(x.wrong, fmt.Sprintf("the receiver was sent %s as event %s: %v", step.Short(string(body)), id, err))
	}
	x.got = append(x.got, received{id, envelope.Data.Resource, envelope.Data.At})
}
