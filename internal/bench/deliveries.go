package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"time"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/delivery"
	"github.com/holdfast-dev/holdfast/orchestrator"
)

const (
	senders   = 64
	perSender = 32
	allSent   = senders * perSender
)

// rate is how often a second something was done, and the processor time of each in microseconds.
type rate struct{ perSecond, cpu float64 }

// deliveryFigures are one round's.
type deliveryFigures struct{ first, again, floor rate }

// deliveries times the orchestrator's endpoint on guests' ready callbacks, each to a
// create in progress, by 64 senders; and the same ones again. The floor is the same
// requests and the same checks of their signature and form, with one bare insert
// behind them. The network is on neither side: the requests are made beforehand, and
// the endpoint is called.
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
		first := medianRate(all, func(f deliveryFigures) rate { return f.first })
		again := medianRate(all, func(f deliveryFigures) rate { return f.again })
		floor := medianRate(all, func(f deliveryFigures) rate { return f.floor })
		return []line{{
			what: "deliveries counted once, " + e.name + ", 64 senders", measured: first.String(),
			against: "the same requests with a bare insert each, " + floor.String(),
			ratio:   first.perSecond / floor.perSecond, goal: ">= 0.70", met: first.perSecond >= 0.7*floor.perSecond,
		}, {
			what: "the same ones again", measured: again.String(), against: "the first time, " + first.String(),
			ratio: again.perSecond / first.perSecond, goal: ">= 4.00", met: again.perSecond >= 4*first.perSecond,
		}}, nil
	}
}

// String is for the table.
func (r rate) String() string { return fmt.Sprintf("%.0f/s (%.0f us of CPU each)", r.perSecond, r.cpu) }

func medianRate[R any](rounds []R, of func(R) rate) rate {
	return rate{medianOf(rounds, func(r R) float64 { return of(r).perSecond }), medianOf(rounds, func(r R) float64 { return of(r).cpu })}
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
			_, err := s.CreateSandbox(ctx, admin(), createInput("create", 0, i))
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
	list, err := s.ListSandboxes(ctx, admin(), holdfast.ListSandboxes{PageSize: 1000})
	var boots []holdfast.InstanceID
	for err == nil {
		for _, sb := range list.Sandboxes {
			boots = append(boots, sb.Instance)
		}
		if list.NextPageToken == "" {
			break
		}
		list, err = s.ListSandboxes(ctx, admin(), holdfast.ListSandboxes{PageSize: 1000, PageToken: list.NextPageToken})
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
		Secrets: [][]byte{delivery.InstanceSecret(clusterKey(), instance, incarnation)}}, err
}

// deliverAll has the senders' requests, signed beforehand, served by the endpoint, and
// tells how many a second, and the processor time of each in microseconds.
func deliverAll(ctx context.Context, endpoint http.Handler, boots []holdfast.InstanceID) (rate, error) {
	requests := make([]*http.Request, len(boots))
	for i, boot := range boots {
		r, err := readyOf(ctx, string(boot))
		if err != nil {
			return rate{}, err
		}
		requests[i] = r
	}
	began, spent := time.Now(), cpuTime()
	err := inParallel(senders, func(sender int) error {
		for i := range perSender {
			answer := httptest.NewRecorder()
			endpoint.ServeHTTP(answer, requests[sender*perSender+i])
			if answer.Code != http.StatusNoContent {
				return fmt.Errorf("a delivery was answered %d: %s", answer.Code, answer.Body)
			}
		}
		return nil
	})
	return rate{allSent / time.Since(began).Seconds(), float64((cpuTime() - spent).Microseconds()) / allSent}, err
}

// readyOf is the request by which a guest says that it is up.
func readyOf(ctx context.Context, boot string) (*http.Request, error) {
	body := fmt.Appendf(nil, `{"type":%q,"data":{"instance":%q,"incarnation":1}}`, holdfast.DeliveryReady, boot)
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://orchestrator.internal/deliveries/instances", bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	id := delivery.DeriveID(string(holdfast.DeliveryReady), boot, 1, "boot")
	r.Header = delivery.Sign(delivery.InstanceSecret(clusterKey(), boot, 1), id, time.Now(), body)
	r.Header.Set(holdfast.HeaderInstance, boot)
	r.Header.Set(holdfast.HeaderIncarnation, "1")
	return r, nil
}
