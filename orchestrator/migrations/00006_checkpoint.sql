-- +goose Up
CREATE TABLE checkpoint (
    id          TEXT    NOT NULL PRIMARY KEY,
    project     TEXT    NOT NULL,
    creator     TEXT    NOT NULL,
    source      TEXT    NOT NULL, -- the sandbox or session that was named
    sandbox     TEXT    NOT NULL,
    instance    TEXT    NOT NULL,
    incarnation BIGINT  NOT NULL,
    generation  BIGINT  NOT NULL, -- of the sandbox, by its operation
    environment TEXT    NOT NULL,
    -- JSON: holdfast.InstanceSpec of the sandbox; once READY, its layers are the checkpoint's.
    spec        TEXT    NOT NULL,
    state       TEXT    NOT NULL CHECK (state = 'CREATING' OR state = 'READY' OR state = 'FAILED' OR state = 'DELETING' OR state = 'DELETED'),
    failure     TEXT    NOT NULL DEFAULT '', -- JSON: holdfast.Failure
    labels      TEXT    NOT NULL,            -- JSON object
    -- FAILED, and its host has not confirmed that no copy goes on.
    copying     BOOLEAN NOT NULL DEFAULT FALSE,
    claim       BIGINT  NOT NULL DEFAULT 0, -- of the attempt whose copy it is
    size        BIGINT  NOT NULL DEFAULT 0, -- bytes that it added
    sha256      TEXT    NOT NULL DEFAULT '', -- of its topmost layer
    created_at  BIGINT  NOT NULL,
    updated_at  BIGINT  NOT NULL,
    deleted_at  BIGINT  NOT NULL DEFAULT 0
);

CREATE INDEX checkpoint_project ON checkpoint (project, id);
CREATE INDEX checkpoint_sandbox ON checkpoint (sandbox, id);
-- What a sweep has to look at, and what is purged one day: the rest costs nothing.
CREATE INDEX checkpoint_open ON checkpoint (id) WHERE state = 'CREATING' OR copying;
CREATE INDEX checkpoint_deleted ON checkpoint (deleted_at, id) WHERE deleted_at > 0;

CREATE TABLE checkpoint_label (
    checkpoint TEXT NOT NULL,
    key        TEXT NOT NULL,
    value      TEXT NOT NULL,
    PRIMARY KEY (checkpoint, key)
);
CREATE INDEX checkpoint_label_value ON checkpoint_label (key, value, checkpoint);

-- What still needs which blob: sandboxes that are not DELETED, and checkpoints. Whoever
-- is made of layers gets its rows while something that has them cannot let go of them.
CREATE TABLE layer_use (
    key     TEXT NOT NULL,
    used_by TEXT NOT NULL, -- id of a sandbox, checkpoint or build
    PRIMARY KEY (key, used_by)
);
CREATE INDEX layer_use_by ON layer_use (used_by);

-- The checkpoint that a sandbox is a fork of; '' for none.
ALTER TABLE sandbox ADD COLUMN source TEXT NOT NULL DEFAULT '';

-- +goose Down
ALTER TABLE sandbox DROP COLUMN source;
DROP TABLE layer_use;
DROP TABLE checkpoint_label;
DROP TABLE checkpoint;
