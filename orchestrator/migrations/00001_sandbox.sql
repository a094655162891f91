-- +goose Up
CREATE TABLE sandbox (
    id            TEXT    NOT NULL PRIMARY KEY,
    project       TEXT    NOT NULL,
    name          TEXT    NOT NULL,
    creator       TEXT    NOT NULL,
    environment   TEXT    NOT NULL,
    -- Not "IN (...)": SQLite makes a table of such a list for each write.
    state         TEXT    NOT NULL CHECK (state = 'CREATING' OR state = 'READY' OR state = 'SUSPENDED' OR state = 'FAILED'
                                          OR state = 'DELETING' OR state = 'DELETED'),
    generation    BIGINT  NOT NULL,
    incarnation   BIGINT  NOT NULL,
    instance      TEXT    NOT NULL,
    spec          TEXT    NOT NULL, -- JSON: holdfast.InstanceSpec, resolved once
    labels        TEXT    NOT NULL, -- JSON object
    ttl           BIGINT  NOT NULL, -- microseconds
    on_expiry     TEXT    NOT NULL,
    delete_wanted BOOLEAN NOT NULL DEFAULT FALSE,
    failure       TEXT    NOT NULL DEFAULT '', -- JSON: holdfast.Failure
    ports         TEXT    NOT NULL DEFAULT '', -- JSON: []holdfast.Port
    guest_said    TEXT    NOT NULL DEFAULT '', -- the kind of the last report of the current boot's guest
    minted_at     BIGINT  NOT NULL, -- of the incarnation
    created_at    BIGINT  NOT NULL,
    updated_at    BIGINT  NOT NULL,
    ready_at      BIGINT  NOT NULL DEFAULT 0,
    expires_at    BIGINT  NOT NULL DEFAULT 0,
    deleted_at    BIGINT  NOT NULL DEFAULT 0
);

CREATE UNIQUE INDEX sandbox_instance ON sandbox (instance);
CREATE INDEX sandbox_project ON sandbox (project, id);

-- What has an instance that an authority can contradict; deleted ones would make the sweep pay for the past.
CREATE INDEX sandbox_live ON sandbox (instance) WHERE state <> 'DELETED';

CREATE TABLE sandbox_label (
    sandbox TEXT NOT NULL,
    key     TEXT NOT NULL,
    value   TEXT NOT NULL,
    PRIMARY KEY (sandbox, key)
);
CREATE INDEX sandbox_label_value ON sandbox_label (key, value, sandbox);

-- The keys of creates. They live as long as their project, far longer than what they created.
CREATE TABLE request (
    project     TEXT   NOT NULL,
    method      TEXT   NOT NULL,
    request_id  TEXT   NOT NULL,
    fingerprint TEXT   NOT NULL, -- JSON: version and a hash per field
    resource    TEXT   NOT NULL,
    created_at  BIGINT NOT NULL,
    PRIMARY KEY (project, method, request_id)
);

-- On which boot a process's request id was first used.
CREATE TABLE process_request (
    sandbox     TEXT   NOT NULL,
    request_id  TEXT   NOT NULL,
    incarnation BIGINT NOT NULL,
    created_at  BIGINT NOT NULL,
    PRIMARY KEY (sandbox, request_id)
);

-- +goose Down
DROP TABLE process_request;
DROP TABLE request;
DROP TABLE sandbox_label;
DROP TABLE sandbox;
