package rpc

import (
	"context"
	"time"

	"connectrpc.com/connect"

	"github.com/holdfast-dev/holdfast"
	v1 "github.com/holdfast-dev/holdfast/api/holdfast/v1"
	"github.com/holdfast-dev/holdfast/api/holdfast/v1/holdfastv1connect"
)

type eventHandler struct {
	service  holdfast.EventService
	patience time.Duration
}

func (h eventHandler) StreamEvents(ctx context.Context, req *v1.StreamEventsRequest, stream *connect.ServerStream[v1.Event]) error {
	in := holdfast.StreamEvents{After: req.GetAfter(), Kinds: req.GetKinds(), Follow: req.GetFollow()}
	return h.service.StreamEvents(ctx, callerOf(ctx), in, func(e holdfast.Event) error {
		return within(ctx, h.patience, func() error { return stream.Send(happenedToWire(e)) })
	})
}

func (h eventHandler) ListDeliveries(ctx context.Context, req *v1.ListDeliveriesRequest) (*v1.ListDeliveriesResponse, error) {
	in := holdfast.ListDeliveries{Source: req.GetSource(), PageSize: int(req.GetPageSize()), PageToken: req.GetPageToken()}
	return answer(deliveriesToWire)(h.service.ListDeliveries(ctx, callerOf(ctx), in))
}

type eventDialer struct {
	client holdfastv1connect.EventServiceClient
}

func (d eventDialer) StreamEvents(ctx context.Context, _ holdfast.Caller, in holdfast.StreamEvents, yield func(holdfast.Event) error) error {
	req := &v1.StreamEventsRequest{After: in.After, Kinds: in.Kinds, Follow: in.Follow}
	return received(ctx, "StreamEvents", opening(d.client.StreamEvents, req), func(e *v1.Event) error { return yield(happenedFromWire(e)) })
}

func (d eventDialer) ListDeliveries(ctx context.Context, _ holdfast.Caller, in holdfast.ListDeliveries) (holdfast.DeliveryPage, error) {
	req := &v1.ListDeliveriesRequest{Source: in.Source, PageSize: pageSize(in.PageSize), PageToken: in.PageToken}
	return call(ctx, "ListDeliveries", d.client.ListDeliveries, req, deliveriesFromWire)
}

func happenedToWire(e holdfast.Event) *v1.Event {
	return &v1.Event{Id: string(e.ID), Cursor: e.Cursor, Project: string(e.Project), Kind: string(e.Kind), Resource: e.Resource, At: stamp(e.At), Object: text(e.Object)}
}

func happenedFromWire(e *v1.Event) holdfast.Event {
	return holdfast.Event{ID: holdfast.EventID(e.GetId()), Cursor: e.GetCursor(), Project: holdfast.ProjectID(e.GetProject()),
		Kind: holdfast.EventKind(e.GetKind()), Resource: e.GetResource(), At: instant(e.GetAt()), Object: e.GetObject()}
}

func deliveriesToWire(page holdfast.DeliveryPage) *v1.ListDeliveriesResponse {
	return &v1.ListDeliveriesResponse{NextPageToken: page.NextPageToken, Deliveries: each(page.Deliveries, func(d holdfast.DeliveryRecord) *v1.Delivery {
		return &v1.Delivery{Source: text(d.Source), Id: text(d.ID), Kind: text(d.Kind), ReceivedAt: stamp(d.ReceivedAt), BodySha256: d.BodySHA256, Outcome: text(d.Outcome)}
	})}
}

func deliveriesFromWire(page *v1.ListDeliveriesResponse) holdfast.DeliveryPage {
	return holdfast.DeliveryPage{NextPageToken: page.GetNextPageToken(), Deliveries: each(page.GetDeliveries(), func(d *v1.Delivery) holdfast.DeliveryRecord {
		return holdfast.DeliveryRecord{Source: d.GetSource(), ID: d.GetId(), Kind: d.GetKind(), ReceivedAt: instant(d.GetReceivedAt()),
			BodySHA256: d.GetBodySha256(), Outcome: d.GetOutcome()}
	})}
}
