-- +goose Up
-- Projects whose changes are recorded as events, and what these are numbered by. A
-- project without a row, or that does not record, pays nothing for them.
CREATE TABLE event_project (
    project   TEXT    NOT NULL PRIMARY KEY,
    recording BOOLEAN NOT NULL,
    sequence  BIGINT  NOT NULL, -- the last number given
    purged    BIGINT  NOT NULL, -- up to this number events may be missing
    asked_at  BIGINT  NOT NULL  -- when somebody last asked for its events
);

CREATE TABLE event (
    id       TEXT   NOT NULL PRIMARY KEY,
    project  TEXT   NOT NULL,
    kind     TEXT   NOT NULL,
    resource TEXT   NOT NULL,
    at       BIGINT NOT NULL, -- microseconds, and above that of the resource's event before
    sequence BIGINT NOT NULL, -- 0: committed, and not numbered since
    object   TEXT   NOT NULL  -- JSON
);
CREATE INDEX event_by_sequence ON event (project, sequence);
CREATE INDEX event_of_resource ON event (resource, at);
CREATE INDEX event_by_age ON event (project, at);

CREATE TABLE webhook (
    id         TEXT   NOT NULL PRIMARY KEY,
    project    TEXT   NOT NULL,
    creator    TEXT   NOT NULL,
    url        TEXT   NOT NULL,
    kinds      TEXT   NOT NULL, -- JSON; '' for all
    created_at BIGINT NOT NULL
);
CREATE INDEX webhook_project ON webhook (project, id);

-- Sources of webhooks from outside.
CREATE TABLE hook (
    name        TEXT   NOT NULL PRIMARY KEY,
    project     TEXT   NOT NULL,
    kind        TEXT   NOT NULL CHECK (kind IN ('GITHUB', 'STANDARD')),
    secret      TEXT   NOT NULL, -- sealed by the cluster's key; base64
    fingerprint TEXT   NOT NULL, -- of what the create sent, with a keyed hash of the secret
    rules       TEXT   NOT NULL, -- YAML
    creator     TEXT   NOT NULL,
    created_at  BIGINT NOT NULL
);

-- What a rule made of a delivery.
CREATE TABLE hook_action (
    id         TEXT   NOT NULL PRIMARY KEY,
    hook       TEXT   NOT NULL,
    delivery   TEXT   NOT NULL,
    rule       TEXT   NOT NULL,
    event      TEXT   NOT NULL,
    project    TEXT   NOT NULL,
    plan       TEXT   NOT NULL, -- JSON
    state      TEXT   NOT NULL,
    failure    TEXT   NOT NULL, -- JSON; '' for none
    resources  TEXT   NOT NULL, -- JSON; '' for none
    attempts   BIGINT NOT NULL,
    claim      BIGINT NOT NULL, -- the fencing number
    due_at     BIGINT NOT NULL, -- earliest next attempt; while claimed, the claim's end
    since      BIGINT NOT NULL, -- made, or last retried by a person: the age that ends it counts from here
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL,
    UNIQUE (hook, delivery, rule)
);
CREATE INDEX hook_action_due ON hook_action (due_at, id) WHERE state = 'PENDING';
CREATE INDEX hook_action_project ON hook_action (project, id);
CREATE INDEX hook_action_ended ON hook_action (updated_at, id) WHERE state <> 'PENDING';

CREATE INDEX delivery_of_hooks ON delivery (received_at, id) WHERE source >= 'hook/' AND source < 'hook0';

-- +goose Down
DROP INDEX delivery_of_hooks;
DROP TABLE hook_action;
DROP TABLE hook;
DROP TABLE webhook;
DROP TABLE event;
DROP TABLE event_project;
