-- +goose Up
CREATE TABLE outbox (
    destination  TEXT   NOT NULL,
    id           TEXT   NOT NULL, -- the event's id: one row per destination and event
    kind         TEXT   NOT NULL,
    ordering_key TEXT   NOT NULL, -- '' when nothing has to wait for anything
    position     BIGINT NOT NULL, -- within destination and ordering_key
    body         TEXT   NOT NULL, -- JSON
    state        TEXT   NOT NULL, -- PENDING, SENT, DEAD
    enqueued_at  BIGINT NOT NULL, -- this and all instants: microseconds, UTC
    since        BIGINT NOT NULL, -- enqueued, or last replayed: the age that ends it counts from here
    due_at       BIGINT NOT NULL, -- earliest next attempt; while claimed, the claim's end
    ended_at     BIGINT NOT NULL, -- 0 while pending
    attempts     BIGINT NOT NULL, -- claims taken since then
    claim        BIGINT NOT NULL, -- the fencing number
    holder       TEXT   NOT NULL, -- '' while unclaimed
    last_error   TEXT   NOT NULL,
    PRIMARY KEY (destination, id)
);
CREATE INDEX outbox_due ON outbox (due_at) WHERE state = 'PENDING';
CREATE INDEX outbox_order ON outbox (destination, ordering_key, position) WHERE ordering_key <> '';
CREATE INDEX outbox_ended ON outbox (state, ended_at) WHERE state <> 'PENDING';

-- +goose Down
DROP TABLE outbox;
