-- +goose Up
CREATE TABLE operation (
    id               TEXT    NOT NULL PRIMARY KEY,
    resource_kind    TEXT    NOT NULL,
    resource_id      TEXT    NOT NULL,
    kind             TEXT    NOT NULL,
    generation       BIGINT  NOT NULL,
    -- Not "IN (...)": SQLite makes a table of such a list for each write.
    state            TEXT    NOT NULL CHECK (state = 'PENDING' OR state = 'DONE' OR state = 'FAILED' OR state = 'SUPERSEDED'),
    issued           BOOLEAN NOT NULL DEFAULT FALSE,
    claim            BIGINT  NOT NULL DEFAULT 0,
    holder           TEXT    NOT NULL DEFAULT '',
    claimed_at       BIGINT  NOT NULL DEFAULT 0,
    claim_expires    BIGINT  NOT NULL DEFAULT 0,
    attempts         BIGINT  NOT NULL DEFAULT 0,
    answered         BIGINT  NOT NULL DEFAULT 0,
    answered_for     BIGINT  NOT NULL DEFAULT 0,
    last_answered_at BIGINT  NOT NULL DEFAULT 0,
    waits_for        TEXT    NOT NULL DEFAULT '',
    superseded_by    TEXT    NOT NULL DEFAULT '',
    entered_at       BIGINT  NOT NULL,
    deadline         BIGINT  NOT NULL,
    due_at           BIGINT  NOT NULL,
    updated_at       BIGINT  NOT NULL,
    finished_at      BIGINT  NOT NULL DEFAULT 0,
    last_error       TEXT    NOT NULL DEFAULT '',
    input            TEXT    NOT NULL DEFAULT ''
);

-- At most one pending operation per resource.
CREATE UNIQUE INDEX operation_pending ON operation (resource_kind, resource_id) WHERE state = 'PENDING';

-- The sweep's order. Only pending rows are in it, so that its cost follows what is overdue and not the journal.
CREATE INDEX operation_due ON operation (due_at, id) WHERE state = 'PENDING';

-- Claims that are recorded as live, for the start of a process that knows earlier holders to be dead.
CREATE INDEX operation_held ON operation (claim_expires) WHERE claim_expires > 0;

-- The journal of one resource.
CREATE INDEX operation_journal ON operation (resource_kind, resource_id, id);

-- +goose Down
DROP TABLE operation;
