package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/delivery"
	"github.com/holdfast-dev/holdfast/orchestrator"
	"github.com/holdfast-dev/holdfast/transport"
)

const (
	senders   = 64
	perSender = 32
	allSent   = senders * perSender
)

// deliveryFigures are deliveries a second.
type deliveryFigures struct{ first, again, floor float64 }

// deliveries times guests' ready callbacks to the orchestrator's endpoint, each to a
// create in progress, by 64 senders; and the same ones again. The floor is the same
// senders, the same signed requests over memory and the same endpoint's checks, with
// one bare insert behind them: HTTP and signatures are on both sides.
func deliveries(e engine) bench {
	return func(ctx context.Context, o options) ([]line, error) {
		var all []deliveryFigures
		for range o.rounds {
			var f deliveryFigures
			err := e.with(ctx, func(p *place) error { return f.counted(ctx, p) })
			if err == nil {
				err = e.with(ctx, func(p *place) error { return f.bare(ctx, p) })
			}
			if err != nil {
				return nil, err
			}
			all = append(all, f)
		}
		first := medianOf(all, func(f deliveryFigures) float64 { return f.first })
		again := medianOf(all, func(f deliveryFigures) float64 { return f.again })
		floor := medianOf(all, func(f deliveryFigures) float64 { return f.floor })
		return []line{{
			what: "deliveries counted once, " + e.name + ", 64 senders", measured: fmt.Sprintf("%.0f/s", first),
			against: fmt.Sprintf("the same requests with a bare insert each, %.0f/s", floor),
			ratio:   first / floor, goal: ">= 0.70", met: first >= 0.7*floor,
		}, {
			what: "the same ones again", measured: fmt.Sprintf("%.0f/s", again), against: fmt.Sprintf("the first time, %.0f/s", first),
			ratio: again / first, goal: ">= 4.00", met: again >= 4*first,
		}}, nil
	}
}

// counted makes creates that are in progress, and delivers to them.
func (f *deliveryFigures) counted(ctx context.Context, p *place) (err error) {
	db, err := p.open(ctx, "orchestrator", orchestrator.Migrations()...)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	held := make(chan struct{})
	s, err := newOrchestrator(ctx, db, stubFleet{held: held})
	if err != nil {
		return err
	}
	creates := make(chan error, allSent)
	var under sync.WaitGroup
	defer func() {
		close(held)
		under.Wait()
		err = errors.Join(err, s.Close())
	}()
	for i := range allSent {
		under.Go(func() {
			_, err := s.CreateSandbox(ctx, admin, createInput("create", 0, i))
			creates <- err
		})
	}
	for began := int64(0); began < allSent; {
		select {
		case err := <-creates:
			return fmt.Errorf("a create ended before its time: %w", err)
		case <-time.After(5 * time.Millisecond):
		}
		if began, err = number(ctx, db, `SELECT COUNT(*) FROM operation WHERE claim_expires > 0`); err != nil {
			return err
		}
	}
	list, err := s.ListSandboxes(ctx, admin, holdfast.ListSandboxes{PageSize: 1000})
	var boots []holdfast.InstanceID
	for err == nil {
		for _, sb := range list.Sandboxes {
			boots = append(boots, sb.Instance)
		}
		if list.NextPageToken == "" {
			break
		}
		list, err = s.ListSandboxes(ctx, admin, holdfast.ListSandboxes{PageSize: 1000, PageToken: list.NextPageToken})
	}
	if err != nil {
		return err
	}
	if f.first, err = deliverAll(ctx, s.DeliveryHandler(), boots); err != nil {
		return err
	}
	if f.again, err = deliverAll(ctx, s.DeliveryHandler(), boots); err != nil {
		return err
	}
	n, err := number(ctx, db, `SELECT COUNT(*) FROM delivery`)
	if err == nil && n != allSent {
		err = fmt.Errorf("%d deliveries are recorded, want %d", n, allSent)
	}
	return err
}

// bare delivers as many, each into one bare insert.
func (f *deliveryFigures) bare(ctx context.Context, p *place) (err error) {
	db, err := p.open(ctx, "orchestrator")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	if err := execute(ctx, db, `CREATE TABLE bare (source TEXT, id TEXT, value TEXT NOT NULL, PRIMARY KEY (source, id))`); err != nil {
		return err
	}
	boots := make([]holdfast.InstanceID, allSent)
	for i := range boots {
		boots[i] = holdfast.InstanceID(holdfast.IDs{}.New(holdfast.PrefixInstance))
	}
	endpoint := delivery.Handle(delivery.Options{Authenticate: bootOf, Log: silent()}, func(ctx context.Context, d delivery.Received) error {
		return execute(ctx, db, `INSERT INTO bare (source, id, value) VALUES ($1, $2, $3)`, d.Source, d.ID, d.Kind)
	})
	f.floor, err = deliverAll(ctx, endpoint, boots)
	return err
}

// bootOf is who a request's headers say it is.
func bootOf(r *http.Request) (delivery.Source, error) {
	instance := r.Header.Get(holdfast.HeaderInstance)
	incarnation, err := strconv.ParseInt(r.Header.Get(holdfast.HeaderIncarnation), 10, 64)
	return delivery.Source{Name: delivery.InstanceSource(instance, incarnation),
		Secrets: [][]byte{delivery.InstanceSecret(clusterKey, instance, incarnation)}}, err
}

// deliverAll has the senders deliver one ready callback of each boot, and tells how
// many a second.
func deliverAll(ctx context.Context, endpoint http.Handler, boots []holdfast.InstanceID) (float64, error) {
	network := &transport.Network{}
	network.Handle("orchestrator.internal", endpoint)
	began := time.Now()
	err := inParallel(senders, func(sender int) error {
		for i := range perSender {
			if err := deliverReady(ctx, network.RoundTripper(), boots[sender*perSender+i]); err != nil {
				return err
			}
		}
		return nil
	})
	took := time.Since(began)
	return allSent / took.Seconds(), errors.Join(err, network.Close(ctx))
}

// deliverReady says what a guest says when it is up, once.
func deliverReady(ctx context.Context, way http.RoundTripper, boot holdfast.InstanceID) error {
	sender := &delivery.Sender{Client: &http.Client{Transport: asBoot{way, string(boot)}}, URL: "http://orchestrator.internal/deliveries/instances",
		Secret: delivery.InstanceSecret(clusterKey, string(boot), 1)}
	return sender.Attempt(ctx, delivery.Message{
		ID:   delivery.DeriveID(string(holdfast.DeliveryReady), string(boot), 1, "boot"),
		Kind: string(holdfast.DeliveryReady), Body: fmt.Appendf(nil, `{"instance":%q,"incarnation":1}`, boot),
	})
}

// asBoot names the boot on each request, as a guest does.
type asBoot struct {
	http.RoundTripper
	instance string
}

// RoundTrip sends one request.
func (b asBoot) RoundTrip(r *http.Request) (*http.Response, error) {
	r.Header.Set(holdfast.HeaderInstance, b.instance)
	r.Header.Set(holdfast.HeaderIncarnation, "1")
	return b.RoundTripper.RoundTrip(r)
}
