-- +goose Up
-- A recipe by its name; each other recipe under the name is another version of it.
CREATE TABLE environment (
    id         TEXT   NOT NULL PRIMARY KEY,
    project    TEXT   NOT NULL,
    name       TEXT   NOT NULL,
    version    BIGINT NOT NULL,
    recipe     TEXT   NOT NULL, -- JSON: holdfast.Recipe of that version
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL,
    deleted_at BIGINT NOT NULL DEFAULT 0
);
CREATE UNIQUE INDEX environment_name ON environment (project, name);

CREATE TABLE environment_version (
    environment TEXT   NOT NULL,
    version     BIGINT NOT NULL,
    recipe      TEXT   NOT NULL, -- JSON: holdfast.Recipe
    created_at  BIGINT NOT NULL,
    PRIMARY KEY (environment, version)
);

CREATE TABLE environment_build (
    id            TEXT    NOT NULL PRIMARY KEY,
    project       TEXT    NOT NULL,
    environment   TEXT    NOT NULL,
    name          TEXT    NOT NULL, -- of the environment
    version       BIGINT  NOT NULL,
    state         TEXT    NOT NULL CHECK (state = 'BUILDING' OR state = 'READY' OR state = 'FAILED' OR state = 'SUPERSEDED'),
    failure       TEXT    NOT NULL DEFAULT '', -- JSON: holdfast.Failure
    superseded_by TEXT    NOT NULL DEFAULT '', -- the build that took its place
    sandbox       TEXT    NOT NULL DEFAULT '', -- the builder; '' where none is needed
    prepared      BOOLEAN NOT NULL DEFAULT FALSE, -- the recipe's files are in the builder: they are never written again
    process       TEXT    NOT NULL DEFAULT '', -- the setup
    setup_ended   BIGINT  NOT NULL DEFAULT 0,
    exit_code     BIGINT  NOT NULL DEFAULT 0,
    log_tail      TEXT    NOT NULL DEFAULT '',
    image         TEXT    NOT NULL, -- of the base, pinned where it can be
    layers        TEXT    NOT NULL DEFAULT '', -- JSON: []holdfast.Layer
    log_key       TEXT    NOT NULL DEFAULT '', -- of the log in the blob store, once it is there
    log_from      BIGINT  NOT NULL DEFAULT 0,  -- offset of its first byte
    log_size      BIGINT  NOT NULL DEFAULT 0,
    cleared       BOOLEAN NOT NULL DEFAULT FALSE, -- nothing is left of the builder
    kept          BOOLEAN NOT NULL DEFAULT TRUE, -- FALSE: nothing new is made of it, so that it is purged one day
    created_at    BIGINT  NOT NULL,
    updated_at    BIGINT  NOT NULL,
    deadline      BIGINT  NOT NULL,
    finished_at   BIGINT  NOT NULL DEFAULT 0
);
CREATE INDEX environment_build_of ON environment_build (environment, version, id);
CREATE INDEX environment_build_project ON environment_build (project, id);
-- What the sweeps follow: what is overdue, what still has a builder, what is kept for a time.
CREATE INDEX environment_build_deadline ON environment_build (deadline, id) WHERE state = 'BUILDING';
CREATE INDEX environment_build_uncleared ON environment_build (id) WHERE finished_at > 0 AND cleared = FALSE;
CREATE INDEX environment_build_ended ON environment_build (finished_at, id) WHERE finished_at > 0 AND kept = FALSE;

-- +goose Down
DROP TABLE environment_build;
DROP TABLE environment_version;
DROP TABLE environment;
