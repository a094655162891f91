package orchestrator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/delivery"
	"github.com/holdfast-dev/holdfast/delivery/inbox"
	"github.com/holdfast-dev/holdfast/operation"
	"github.com/holdfast-dev/holdfast/store"
)

// guestLimit bounds what a guest may post, in bytes.
const guestLimit = 64 << 10

// errNotKnownYet keeps what concerns something not known yet from being lost:
// it is answered 503 and comes again (contract: B7, trap T17).
var errNotKnownYet = delivery.ErrNotYet

// fleetSource names the fleet in the inbox.
const fleetSource = "fleet"

// DeliveryHandler serves the orchestrator's delivery endpoints:
// POST /deliveries/instances (H5), /deliveries/fleet (H8) and /telemetry (H6).
func (s *Service) DeliveryHandler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/deliveries/instances", delivery.Handle(delivery.Options{
		Authenticate: s.guestSource, Limit: guestLimit, Clock: s.config.Clock, Log: s.config.Logger}, s.guestReported))
	mux.Handle("/deliveries/fleet", delivery.Handle(delivery.Options{
		Authenticate: func(*http.Request) (delivery.Source, error) {
			return delivery.Source{Name: fleetSource, Secrets: [][]byte{s.config.FleetSecret}}, nil
		}, Clock: s.config.Clock, Log: s.config.Logger}, s.fleetReported))
	mux.HandleFunc("POST /telemetry", func(w http.ResponseWriter, r *http.Request) {
		// Nothing is kept of telemetry yet; it is read so that the connection lives.
		if _, err := io.Copy(io.Discard, http.MaxBytesReader(w, r.Body, guestLimit)); err != nil {
			http.Error(w, "too large", http.StatusRequestEntityTooLarge)
			return
		}
		w.WriteHeader(http.StatusNoContent)
	})
	return mux
}

func (s *Service) guestSource(r *http.Request) (delivery.Source, error) {
	instance := r.Header.Get(holdfast.HeaderInstance)
	incarnation, err := strconv.ParseInt(r.Header.Get(holdfast.HeaderIncarnation), 10, 64)
	if err != nil || incarnation < 1 || holdfast.CheckID(holdfast.HeaderInstance, holdfast.PrefixInstance, instance) != nil {
		return delivery.Source{}, fmt.Errorf("%w: %s and %s name no boot", delivery.ErrUnauthenticated, holdfast.HeaderInstance, holdfast.HeaderIncarnation)
	}
	return delivery.Source{
		Name:    delivery.InstanceSource(instance, incarnation),
		Secrets: [][]byte{delivery.InstanceSecret(s.config.ClusterKey, instance, incarnation)},
	}, nil
}

// deliver counts a delivery once: its id and its effect in one transaction
// (contract: B3, B4). The effect returns what it did, for operators; usual is what
// that mostly is.
func (s *Service) deliver(ctx context.Context, d delivery.Received, usual string, effect func(tx store.Tx, now time.Time) (string, error)) error {
	if s.heard.Has(d.Source, d.ID) {
		return nil
	}
	err := s.count(ctx, d, usual, effect)
	if err == nil {
		s.heard.Add(d.Source, d.ID)
	}
	return err
}

func (s *Service) count(ctx context.Context, d delivery.Received, usual string, effect func(tx store.Tx, now time.Time) (string, error)) error {
	return s.update(ctx, "delivery", func(tx store.Tx, now time.Time) error {
		fresh, err := inbox.Record(ctx, tx, inbox.Delivery{Source: d.Source, ID: d.ID, Kind: d.Kind, ReceivedAt: now, Body: d.Body, Outcome: usual})
		if err != nil || !fresh {
			return err
		}
		did, err := effect(tx, now)
		if err != nil || did == usual {
			return err
		}
		return inbox.Note(ctx, tx, d.Source, d.ID, did)
	})
}

// didNote is what a delivery did that left the rest to a live attempt.
const didNote = "applied: noted"

// didFail is what one did that made a sandbox FAILED.
const didFail = "applied: FAILED"

// guestReported is H5, from the guest itself: ready or failed, or the end of a process.
func (s *Service) guestReported(ctx context.Context, d delivery.Received) error {
	kind := holdfast.DeliveryKind(d.Kind)
	switch kind {
	case holdfast.DeliveryReady, holdfast.DeliveryFailed:
	case holdfast.DeliveryTaskComplete, holdfast.DeliverySetupReady, holdfast.DeliverySetupFailed:
		return s.processReported(ctx, d, kind)
	default:
		return fmt.Errorf("%w: guests do not report %q", delivery.ErrMalformed, d.Kind)
	}
	var report holdfast.GuestReport
	if err := json.Unmarshal(d.Body, &report); err != nil {
		return fmt.Errorf("%w: %w", delivery.ErrMalformed, err)
	}
	if d.Source != delivery.InstanceSource(string(report.Instance), report.Incarnation) {
		return fmt.Errorf("%w: the report is about another boot than the one that signed it", delivery.ErrMalformed)
	}
	if s.heard.Has(d.Source, d.ID) {
		return nil
	}
	if kind == holdfast.DeliveryReady {
		noted, err := s.noteReady(ctx, d, holdfast.InstanceRef{Instance: report.Instance, Incarnation: report.Incarnation})
		if err != nil || noted { // nothing that anybody waits for
			return err
		}
	}
	var touched holdfast.SandboxID
	err := s.deliver(ctx, d, didNote, func(tx store.Tx, _ time.Time) (string, error) {
		touched = ""
		r, found, now, err := lockByInstance(ctx, tx, report.Instance)
		if err != nil {
			return "", err
		}
		if !found || report.Incarnation > r.Incarnation {
			return "", errNotKnownYet
		}
		if report.Incarnation < r.Incarnation {
			return fmt.Sprintf("ignored: incarnation %d is over, %d is current", report.Incarnation, r.Incarnation), nil
		}
		touched = r.ID
		return s.applyReport(ctx, tx, now, r, kind, report)
	})
	if touched != "" {
		s.done.ring(string(touched))
	}
	return err
}

// noteReady records that the guest of a boot said it is ready, where a live attempt is
// at the create and hears it by itself: then that is all there is to do, and nothing
// is locked. An attempt that ends meanwhile without having heard it leaves the create
// to the next one, which asks. False where it is not so.
func (s *Service) noteReady(ctx context.Context, d delivery.Received, boot holdfast.InstanceRef) (noted bool, err error) {
	if s.config.Joiner != nil {
		noted = s.readyAtOnce(ctx, d, boot)
	} else {
		err = s.update(ctx, "delivery", func(tx store.Tx, now time.Time) (err error) {
			noted, err = inbox.RecordIf(ctx, tx, inbox.Delivery{Source: d.Source, ID: d.ID, Kind: d.Kind, ReceivedAt: now, Body: d.Body, Outcome: didNote},
				hears("$7", "$8", "$9"), string(boot.Instance), boot.Incarnation, store.Micros(now))
			return err
		})
	}
	if noted {
		s.heard.Add(d.Source, d.ID)
	}
	return noted, err
}

// applyReport records the guest's word beside the state. Without a live claim it
// also settles the create or replacement that it answers; a live attempt hears it by itself.
func (s *Service) applyReport(ctx context.Context, tx store.Tx, now time.Time, r row, kind holdfast.DeliveryKind, report holdfast.GuestReport) (string, error) {
	if r.State != holdfast.SandboxCreating {
		return "ignored: the sandbox is " + string(r.State), nil
	}
	r.GuestSaid = kind
	if kind == holdfast.DeliveryFailed {
		failure := report.Failure
		if failure == nil {
			failure = &holdfast.Failure{Reason: holdfast.ReasonSetupFailed, Message: "the guest reported that it failed"}
		}
		return didFail, s.failRow(ctx, tx, now, &r, failure)
	}
	pending, has, err := operation.Pending(ctx, tx, r.resource())
	if err != nil {
		return "", err
	}
	if has && pending.Claimed(now) {
		return didNote, nil
	}
	if !has || pending.Kind != string(holdfast.OperationCreate) && pending.Kind != string(holdfast.OperationReplace) {
		return didNote, r.save(ctx, tx, now)
	}
	if _, err := operation.End(ctx, tx, now, pending.ID, operation.Outcome{State: operation.StateDone}); err != nil {
		return "", err
	}
	s.arrive(&r, holdfast.OperationKind(pending.Kind), holdfast.Observation{}, now)
	if err := r.save(ctx, tx, now); err != nil {
		return "", err
	}
	// A delete that met the attempt whose claim has run out is begun by whoever ends that.
	_, err = s.beginWanted(ctx, tx, now, &r)
	return "applied: READY", err
}

// failRow is a final fact: it ends any operation but a delete, whatever the
// claim, sets the state, and begins a delete that was wanted.
func (s *Service) failRow(ctx context.Context, tx store.Tx, now time.Time, r *row, failure *holdfast.Failure) error {
	pending, has, err := operation.Pending(ctx, tx, r.resource())
	if err != nil {
		return err
	}
	if has {
		e := holdfast.E(holdfast.FailedPrecondition, holdfast.ReasonExited, "%s failed: %s", r.ID, failure.Message)
		if pending.Kind == string(holdfast.OperationCreate) {
			e.Reason = holdfast.ReasonCreateFailed
		}
		recorded := recordable(e, failure)
		_, err := operation.End(ctx, tx, now, pending.ID, operation.Outcome{State: operation.StateFailed, Failure: recorded})
		if err == nil {
			err = s.dropCheckpoint(ctx, tx, now, pending, failure)
		}
		if err == nil {
			err = s.tellFailed(ctx, tx, now, *r, failedOperation{pending.ID, pending.Kind, recorded})
		}
		if err != nil {
			return err
		}
	}
	r.fail(failure, now)
	if err := r.save(ctx, tx, now); err != nil {
		return err
	}
	_, err = s.beginWanted(ctx, tx, now, r)
	return err
}

// fleetReported is H8: an instance exited or is lost.
func (s *Service) fleetReported(ctx context.Context, d delivery.Received) error {
	if holdfast.DeliveryKind(d.Kind) != holdfast.DeliveryExited {
		return fmt.Errorf("%w: the fleet does not report %q", delivery.ErrMalformed, d.Kind)
	}
	var seen holdfast.Observation
	if err := json.Unmarshal(d.Body, &seen); err != nil {
		return fmt.Errorf("%w: %w", delivery.ErrMalformed, err)
	}
	var e exit
	err := s.deliver(ctx, d, didFail, func(tx store.Tx, _ time.Time) (string, error) {
		e = exit{}
		r, found, now, err := lockByInstance(ctx, tx, seen.Instance)
		if err != nil {
			return "", err
		}
		if !found || seen.Incarnation > r.Incarnation {
			return "", errNotKnownYet
		}
		e, err = s.applyExit(ctx, tx, now, r, seen)
		return e.did, err
	})
	s.exited(e, err)
	return err
}

// exit is what became of a sandbox whose instance ended.
type exit struct {
	sandbox  holdfast.SandboxID
	did      string // for operators
	replaced bool   // a replacement was begun, and nobody is at it
}

// exited follows the transaction: who waits looks again, what was begun goes on.
func (s *Service) exited(e exit, err error) {
	if e.sandbox != "" {
		s.done.ring(string(e.sandbox))
	}
	if e.replaced && err == nil {
		s.carryOnSoon(e.sandbox)
	}
}

// applyExit makes a sandbox whose instance ended FAILED, or begins to replace it
// as its policy says; whoever comes second, delivery or sweep, does nothing.
func (s *Service) applyExit(ctx context.Context, tx store.Tx, now time.Time, r row, seen holdfast.Observation) (exit, error) {
	e := exit{sandbox: r.ID}
	switch {
	case seen.Incarnation < r.Incarnation:
		e.did = fmt.Sprintf("ignored: incarnation %d is over, %d is current", seen.Incarnation, r.Incarnation)
		return e, nil
	case r.State != holdfast.SandboxCreating && r.State != holdfast.SandboxReady && r.State != holdfast.SandboxSuspended:
		e.did = "ignored: the sandbox is " + string(r.State)
		return e, nil
	}
	var err error
	e.did = didFail
	if e.replaced, err = s.lostRow(ctx, tx, now, &r, failureOf(seen)); e.replaced {
		e.did = fmt.Sprintf("applied: incarnation %d replaces it", r.Incarnation)
	}
	return e, err
}

func isNotFound(err error) bool { return errors.Is(err, operation.ErrNotFound) }
