package injection

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/client"
	"github.com/holdfast-dev/holdfast/delivery"
	"github.com/holdfast-dev/holdfast/internal/server"
	"github.com/holdfast-dev/holdfast/rpc"
	"github.com/holdfast-dev/holdfast/runtime"
)

// patience is how long an experiment waits for what must come, in real time.
const patience = 40 * time.Second

// sweepEvery is the period of a throwaway system's sweeps, instead of a minute.
const sweepEvery = 300 * time.Millisecond

// lab is one experiment's throwaway system: every role in this process, on
// databases in a temporary directory.
type lab struct {
	context.Context

	server  *server.Server
	front   *wire // H1
	wire    *wire // the hops between the parties
	machine *machine
	clock   *clock
	dir     string
	client  *client.Client
}

// open starts it.
func open(ctx context.Context, config Config, trustHosts bool) (_ *lab, err error) {
	dir, err := os.MkdirTemp(config.TempDir, "holdfast-inject-")
	if err != nil {
		return nil, err
	}
	l := &lab{Context: ctx, dir: dir, front: &wire{next: rpc.NewHTTPClient().Transport}, wire: &wire{}, clock: &clock{}}
	defer func() {
		if err != nil {
			err = errors.Join(err, l.close())
		}
	}()
	settings := server.Config{
		DataDir: dir, Listen: "127.0.0.1:0", Runtime: config.Runtime, GuestBinary: config.GuestBinary, RuntimeBinary: config.RuntimeBinary,
		SweepEvery: sweepEvery, Clock: l.clock.now, BootWithin: 3 * time.Second, ClaimTTL: 5 * time.Second, DrainFor: 5 * time.Second,
		AllowPrivateWebhooks: true, // the experiments' receivers are here
		Hops: func(next http.RoundTripper) http.RoundTripper {
			l.wire.next = next
			if config.sabotage != nil {
				l.wire.next = config.sabotage(next)
			}
			return l.wire
		},
		Driver: func(d runtime.Driver) runtime.Driver {
			l.machine = newMachine(d)
			return l.machine
		},
		Logger: slog.New(slog.DiscardHandler), // what goes wrong there was asked for
	}
	if trustHosts {
		settings.HostSuspectAfter, settings.HostLostAfter, settings.HostLossAfter = 2*time.Hour, 3*time.Hour, 4*time.Hour
	}
	if l.server, err = server.Start(ctx, settings); err != nil {
		return nil, err
	}
	l.client, err = l.dial(patience)
	return l, err
}

// dial is a client with so much time for a call, retries included.
func (l *lab) dial(overall time.Duration) (*client.Client, error) {
	key, _ := l.server.AdminKey()
	return client.New(l.server.URL(), client.WithAPIKey(key), client.WithOverallTimeout(overall),
		client.WithHTTPClient(&http.Client{Transport: l.front}))
}

// close ends every instance, which would outlive its server, then the system.
func (l *lab) close() error {
	var err error
	if l.server != nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(l.Context), closing)
		defer cancel()
		err = errors.Join(l.endAll(ctx), l.server.Shutdown(ctx))
	}
	return errors.Join(err, os.RemoveAll(l.dir))
}

// closing bounds the end of a throwaway system.
const closing = 30 * time.Second

// endAll deletes the sandboxes over a wire without faults, and holds that the
// runtime has nothing left then.
func (l *lab) endAll(ctx context.Context) error {
	if l.client == nil {
		return nil
	}
	for _, w := range []*wire{l.front, l.wire} {
		w.liftAll()
	}
	l.machine.heal()
	if err := l.endOwners(ctx); err != nil {
		return fmt.Errorf("clean up: %w", err)
	}
	page, err := l.client.ListSandboxes(ctx, holdfast.ListSandboxes{})
	if err != nil {
		return fmt.Errorf("clean up: %w", err)
	}
	for _, sb := range page.Sandboxes {
		if sb.Owner != "" {
			continue // it ends with that
		}
		if _, err := l.client.DeleteSandbox(ctx, holdfast.MutateSandbox{ID: sb.ID}); err != nil {
			return fmt.Errorf("clean up: %w", err)
		}
	}
	clean := *l
	clean.Context = ctx
	return clean.empty()
}

// endOwners ends what has sandboxes of its own: sessions, and builds with their
// environments.
func (l *lab) endOwners(ctx context.Context) error {
	sessions, err := l.client.ListSessions(ctx, holdfast.ListSessions{})
	for _, se := range sessions.Sessions {
		_, deleteErr := l.client.DeleteSession(ctx, holdfast.MutateSession{ID: se.ID, Force: true})
		err = errors.Join(err, deleteErr)
	}
	environments, listErr := l.client.ListEnvironments(ctx, holdfast.ListEnvironments{})
	for _, e := range environments.Environments {
		_, deleteErr := l.client.DeleteEnvironment(ctx, e.Name)
		err = errors.Join(err, deleteErr)
	}
	return errors.Join(err, listErr)
}

// until polls a fact for as long as patience lasts.
func (l *lab) until(what string, holds func() (bool, error)) error {
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	for {
		ok, err := holds()
		if ok {
			return nil
		}
		select {
		case <-l.Done():
			return errors.Join(l.Err(), err)
		case <-deadline.C:
			return errors.Join(fmt.Errorf("after %s it is not so that %s", patience, what), err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// create makes a sandbox that is READY.
func (l *lab) create(id string, change ...func(*holdfast.CreateSandbox)) (holdfast.Sandbox, error) {
	in := holdfast.CreateSandbox{RequestID: id, Environment: "base"}
	for _, c := range change {
		c(&in)
	}
	return l.client.CreateSandbox(l, in)
}

// replaced lets a lost instance be made anew.
func replaced(in *holdfast.CreateSandbox) { in.Restart = holdfast.RestartFresh }

// abandoned is a create whose caller leaves as soon as it is recorded, and the
// fault, if any, has fired; it never comes back.
func (l *lab) abandoned(id string, fault *rule) (holdfast.SandboxID, error) {
	calling, leave := context.WithCancel(l)
	defer leave()
	left := make(chan error, 1)
	go func() {
		_, err := l.client.CreateSandbox(calling, holdfast.CreateSandbox{RequestID: id, Environment: "base"})
		left <- err
	}()
	var page holdfast.SandboxPage
	err := l.until("a create is recorded, and its message kept back", func() (bool, error) {
		var err error
		page, err = l.client.ListSandboxes(l, holdfast.ListSandboxes{})
		return err == nil && len(page.Sandboxes) == 1 && (fault == nil || fault.count() > 0), err
	})
	leave()
	if createErr := <-left; createErr == nil && fault != nil {
		err = errors.Join(err, errors.New("the create succeeded, although its message was kept back"))
	}
	if err != nil {
		return "", err
	}
	return page.Sandboxes[0].ID, nil
}

// becomes waits for a sandbox's state.
func (l *lab) becomes(id holdfast.SandboxID, state holdfast.SandboxState) (holdfast.Sandbox, error) {
	var sb holdfast.Sandbox
	err := l.until(fmt.Sprintf("%s is %s", id, state), func() (bool, error) {
		var err error
		sb, err = l.client.GetSandbox(l, id)
		return err == nil && sb.State == state && sb.Operation == nil, err
	})
	if err != nil {
		err = fmt.Errorf("%w (it is %s)", err, sb.State)
	}
	return sb, err
}

// lives waits for an incarnation that is READY.
func (l *lab) lives(id holdfast.SandboxID, incarnation int64) (holdfast.Sandbox, error) {
	var sb holdfast.Sandbox
	return sb, l.until(fmt.Sprintf("%s is READY as incarnation %d", id, incarnation), func() (bool, error) {
		var err error
		sb, err = l.client.GetSandbox(l, id)
		return err == nil && sb.State == holdfast.SandboxReady && sb.Incarnation == incarnation && sb.Operation == nil, err
	})
}

// stays holds that a sandbox is still as it was.
func (l *lab) stays(was holdfast.Sandbox) error {
	is, err := l.client.GetSandbox(l, was.ID)
	if err != nil {
		return err
	}
	if is.State != was.State || is.Incarnation != was.Incarnation || is.Generation != was.Generation || is.Operation != nil {
		return fmt.Errorf("it was %s, incarnation %d, generation %d, and is %s, %d, %d", was.State, was.Incarnation, was.Generation,
			is.State, is.Incarnation, is.Generation)
	}
	return nil
}

// once holds that there is one sandbox, and that it booted once.
func (l *lab) once(sb holdfast.Sandbox) error {
	page, err := l.client.ListSandboxes(l, holdfast.ListSandboxes{})
	if err != nil {
		return err
	}
	if len(page.Sandboxes) != 1 {
		return fmt.Errorf("there are %d sandboxes", len(page.Sandboxes))
	}
	if n := l.machine.booted(ref(sb)); n != 1 {
		return fmt.Errorf("it booted %d times", n)
	}
	return nil
}

func ref(sb holdfast.Sandbox) holdfast.InstanceRef {
	return holdfast.InstanceRef{Instance: sb.Instance, Incarnation: sb.Incarnation}
}

// journal counts a sandbox's operations of a kind.
func (l *lab) journal(id holdfast.SandboxID, kind holdfast.OperationKind) (n, attempts int, err error) {
	page, err := l.client.ListOperations(l, holdfast.ListOperations{Resource: string(id)})
	for _, op := range page.Operations {
		if op.Kind == kind {
			n++
			attempts += op.Attempts
		}
	}
	return n, attempts, err
}

// asGuest posts a message as the guest of a boot would, to the orchestrator.
func (l *lab) asGuest(r holdfast.InstanceRef, path string, m delivery.Message) error {
	key, err := os.ReadFile(filepath.Join(l.dir, "cluster.key"))
	if err != nil {
		return err
	}
	secret := delivery.InstanceSecret([]byte(strings.TrimSpace(string(key))), string(r.Instance), r.Incarnation)
	sender := &delivery.Sender{Secret: secret, URL: l.server.URL() + path, Client: &http.Client{Transport: posted{r, l.wire.next}}}
	return sender.Attempt(l, m)
}

// posted names the boot on a message, as guests do.
type posted struct {
	ref  holdfast.InstanceRef
	next http.RoundTripper
}

// RoundTrip sends it on.
func (p posted) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set(holdfast.HeaderInstance, string(p.ref.Instance))
	r.Header.Set(holdfast.HeaderIncarnation, strconv.FormatInt(p.ref.Incarnation, 10))
	return p.next.RoundTrip(r)
}
