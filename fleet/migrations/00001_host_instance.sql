-- Instants are microseconds since 1970, UTC; 0 is none.
-- +goose Up
CREATE TABLE host (
    id                TEXT   NOT NULL PRIMARY KEY,
    name              TEXT   NOT NULL,
    url               TEXT   NOT NULL,
    runtime           TEXT   NOT NULL,
    boot_id           TEXT   NOT NULL,
    boot_changed_at   BIGINT NOT NULL,
    health            TEXT   NOT NULL,
    health_at         BIGINT NOT NULL, -- when the fleet set that health
    duty              TEXT   NOT NULL,
    cpu_millis        BIGINT NOT NULL,
    memory_bytes      BIGINT NOT NULL,
    instances         BIGINT NOT NULL,
    used_cpu_millis   BIGINT NOT NULL, -- the sum of what is held there
    used_memory_bytes BIGINT NOT NULL,
    used_instances    BIGINT NOT NULL,
    sequence          BIGINT NOT NULL, -- of the last heartbeat that counted
    seen_at           BIGINT NOT NULL,
    created_at        BIGINT NOT NULL
);
CREATE INDEX host_url ON host (url);

CREATE TABLE instance (
    id                  TEXT   NOT NULL PRIMARY KEY,
    incarnation         BIGINT NOT NULL,
    generation          BIGINT NOT NULL, -- of the last level recorded
    revision            BIGINT NOT NULL, -- raised by every change: what a repair is conditional on
    desired             TEXT   NOT NULL,
    spec                TEXT   NOT NULL, -- JSON; '' when it was never to run
    spec_hash           TEXT   NOT NULL,
    owner               TEXT   NOT NULL,
    host                TEXT   NOT NULL, -- '' when it was never placed
    held                BIGINT NOT NULL, -- 1 while cpu_millis and memory_bytes are reserved on the host
    cpu_millis          BIGINT NOT NULL,
    memory_bytes        BIGINT NOT NULL,
    state               TEXT   NOT NULL,
    known               TEXT   NOT NULL, -- the state before UNKNOWN, else the state
    observed_generation BIGINT NOT NULL, -- that the state answers
    settled             BIGINT NOT NULL, -- 1 when ports and address are the host's word on this state
    failure             TEXT   NOT NULL, -- JSON, '' for none
    progress            TEXT   NOT NULL,
    ports               TEXT   NOT NULL, -- JSON, '' for none
    address             TEXT   NOT NULL,
    boot_id             TEXT   NOT NULL,
    minted_at           BIGINT NOT NULL,
    placed_at           BIGINT NOT NULL,
    leveled_at          BIGINT NOT NULL, -- when the last level was recorded
    entered_at          BIGINT NOT NULL, -- when the state was entered
    observed_at         BIGINT NOT NULL, -- on the host's clock
    due_at              BIGINT NOT NULL, -- when a sweep looks at it next, 0 for never
    tombstone_at        BIGINT NOT NULL  -- when it became ABSENT
);
CREATE INDEX instance_host ON instance (host, id);
CREATE INDEX instance_due ON instance (due_at, id) WHERE due_at > 0;
CREATE INDEX instance_tombstone ON instance (tombstone_at, id) WHERE tombstone_at > 0;

-- What a superseded incarnation still holds, until its host confirms its end.
CREATE TABLE leftover (
    instance     TEXT   NOT NULL,
    incarnation  BIGINT NOT NULL,
    generation   BIGINT NOT NULL,
    host         TEXT   NOT NULL,
    cpu_millis   BIGINT NOT NULL,
    memory_bytes BIGINT NOT NULL,
    placed_at    BIGINT NOT NULL,
    since        BIGINT NOT NULL,
    PRIMARY KEY (instance, incarnation)
);

-- +goose Down
DROP TABLE leftover;
DROP TABLE instance;
DROP TABLE host;
