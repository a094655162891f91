-- +goose Up
CREATE TABLE session (
    id            TEXT    NOT NULL PRIMARY KEY,
    project       TEXT    NOT NULL,
    name          TEXT    NOT NULL,
    creator       TEXT    NOT NULL,
    environment   TEXT    NOT NULL, -- as the create named it
    build         TEXT    NOT NULL, -- that it is made from, or waits for; '' for none
    source        TEXT    NOT NULL, -- the checkpoint that it is a fork of; '' for none
    -- Not "IN (...)": SQLite makes a table of such a list for each write.
    state         TEXT    NOT NULL CHECK (state = 'WAITING' OR state = 'CREATING' OR state = 'READY' OR state = 'SUSPENDED'
                                          OR state = 'FAILED' OR state = 'DELETING' OR state = 'DELETED'),
    generation    BIGINT  NOT NULL,
    incarnation   BIGINT  NOT NULL DEFAULT 0, -- of its sandbox
    sandbox       TEXT    NOT NULL DEFAULT '', -- '' while WAITING
    shape         TEXT    NOT NULL, -- JSON: what its sandbox is to be, and its hooks
    labels        TEXT    NOT NULL, -- JSON object
    idle          BIGINT  NOT NULL, -- microseconds
    active_at     BIGINT  NOT NULL,
    suspended_by  TEXT    NOT NULL DEFAULT '',
    door_closed   BOOLEAN NOT NULL DEFAULT FALSE, -- no new task is taken
    forced        BOOLEAN NOT NULL DEFAULT FALSE, -- what is pending cancels the running task
    delete_wanted BOOLEAN NOT NULL DEFAULT FALSE, -- a delete met what has to be finished first
    hook_at       BIGINT  NOT NULL DEFAULT 0,     -- when the hook of what is pending was first tried
    hooked        TEXT    NOT NULL DEFAULT '',    -- the operation whose hook has ended
    hook_failure  TEXT    NOT NULL DEFAULT '',    -- JSON: holdfast.Failure
    failure       TEXT    NOT NULL DEFAULT '',    -- JSON: holdfast.Failure
    created_at    BIGINT  NOT NULL,
    updated_at    BIGINT  NOT NULL,
    deleted_at    BIGINT  NOT NULL DEFAULT 0
);

CREATE INDEX session_project ON session (project, id);

-- Who waits for a build: when that ends, it is asked for these alone.
CREATE INDEX session_waiting ON session (build, id) WHERE state = 'WAITING';

CREATE INDEX session_deleted ON session (deleted_at, id) WHERE deleted_at > 0;

CREATE TABLE session_label (
    session TEXT NOT NULL,
    key     TEXT NOT NULL,
    value   TEXT NOT NULL,
    PRIMARY KEY (session, key)
);
CREATE INDEX session_label_value ON session_label (key, value, session);

-- +goose Down
DROP TABLE session_label;
DROP TABLE session;
