-- +goose Up
CREATE TABLE task (
    id           TEXT    NOT NULL PRIMARY KEY, -- and the request id of its process
    session      TEXT    NOT NULL,
    project      TEXT    NOT NULL,
    creator      TEXT    NOT NULL,
    system       BOOLEAN NOT NULL,
    position     BIGINT  NOT NULL, -- in the session's queue
    state        TEXT    NOT NULL CHECK (state = 'QUEUED' OR state = 'RUNNING' OR state = 'SUCCEEDED' OR state = 'FAILED'
                                         OR state = 'CANCELLED' OR state = 'TIMED_OUT'),
    command      TEXT    NOT NULL, -- JSON: holdfast.StartProcess, as its process is started
    task_limit   BIGINT  NOT NULL, -- microseconds
    incarnation  BIGINT  NOT NULL DEFAULT 0, -- of the session's sandbox, recorded before it starts
    process      TEXT    NOT NULL DEFAULT '',
    process_ended BOOLEAN NOT NULL DEFAULT FALSE, -- and exit_code is known
    exit_code    BIGINT  NOT NULL DEFAULT 0,
    failure      TEXT    NOT NULL DEFAULT '', -- JSON: holdfast.Failure
    contrary     TEXT    NOT NULL DEFAULT '', -- JSON: holdfast.TaskReport
    cancel_asked BOOLEAN NOT NULL DEFAULT FALSE,
    timed_out    BOOLEAN NOT NULL DEFAULT FALSE, -- its process was found running past the limit, and is being ended
    signals      BIGINT  NOT NULL DEFAULT 0, -- that its process was sent
    log          TEXT    NOT NULL DEFAULT '', -- JSON: where its output is kept
    log_attempts BIGINT  NOT NULL DEFAULT 0, -- names the objects of the next copy
    look_at      BIGINT  NOT NULL DEFAULT 0, -- when a sweep looks at it next; 0: never
    created_at   BIGINT  NOT NULL,
    updated_at   BIGINT  NOT NULL,
    started_at   BIGINT  NOT NULL DEFAULT 0,
    finished_at  BIGINT  NOT NULL DEFAULT 0
);

-- One at a time, whatever any replica believes.
CREATE UNIQUE INDEX task_running ON task (session) WHERE state = 'RUNNING';
CREATE UNIQUE INDEX task_position ON task (session, position);
CREATE INDEX task_queue ON task (session, position) WHERE state = 'QUEUED';
CREATE INDEX task_of_session ON task (session, id);
CREATE INDEX task_look ON task (look_at, id) WHERE look_at > 0;

-- Sessions by when they will have been idle for long enough.
CREATE INDEX session_idle ON session ((active_at + idle), id) WHERE state = 'READY';

-- +goose Down
DROP INDEX session_idle;
DROP TABLE task;
