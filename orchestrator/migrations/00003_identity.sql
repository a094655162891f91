-- +goose Up
CREATE TABLE project (
    id            TEXT   NOT NULL PRIMARY KEY,
    name          TEXT   NOT NULL UNIQUE,
    created_with  TEXT   NOT NULL, -- JSON: the quotas that the create sent
    sandboxes     BIGINT NOT NULL, -- quotas; -1 is no limit
    cpu_millis    BIGINT NOT NULL,
    memory_bytes  BIGINT NOT NULL,
    created_at    BIGINT NOT NULL,
    updated_at    BIGINT NOT NULL
);

-- A project's quotas in parts, so that its creates do not wait for one row: what
-- the sandboxes of a shard hold, and how much they may.
CREATE TABLE quota_shard (
    project          TEXT   NOT NULL,
    shard            BIGINT NOT NULL, -- from 1 on
    sandboxes        BIGINT NOT NULL,
    cpu_millis       BIGINT NOT NULL,
    memory_bytes     BIGINT NOT NULL,
    sandboxes_cap    BIGINT NOT NULL,
    cpu_millis_cap   BIGINT NOT NULL,
    memory_bytes_cap BIGINT NOT NULL,
    PRIMARY KEY (project, shard)
);

CREATE TABLE api_key (
    id         TEXT   NOT NULL PRIMARY KEY,
    project    TEXT   NOT NULL,
    name       TEXT   NOT NULL,
    role       TEXT   NOT NULL CHECK (role IN ('MEMBER', 'ADMIN')),
    hash       TEXT   NOT NULL UNIQUE, -- SHA-256 of the secret, in hex
    created_at BIGINT NOT NULL,
    revoked_at BIGINT NOT NULL DEFAULT 0
);

CREATE INDEX api_key_project ON api_key (project, id);

-- The shard that a sandbox's resources are counted in; 0 once they were given back.
ALTER TABLE sandbox ADD COLUMN quota_shard BIGINT NOT NULL DEFAULT 0;
ALTER TABLE sandbox ADD COLUMN cpu_millis BIGINT NOT NULL DEFAULT 0;
ALTER TABLE sandbox ADD COLUMN memory_bytes BIGINT NOT NULL DEFAULT 0;

-- For the recount, which reads nothing but this index.
CREATE INDEX sandbox_counted ON sandbox (project, quota_shard, cpu_millis, memory_bytes) WHERE quota_shard > 0;

-- What holds resources and is not counted, or the reverse: sandboxes of before there were quotas.
CREATE INDEX sandbox_miscounted ON sandbox (project, id)
    WHERE (quota_shard > 0) = (state = 'FAILED' OR state = 'DELETED');

-- +goose Down
DROP INDEX sandbox_miscounted;
DROP INDEX sandbox_counted;
ALTER TABLE sandbox DROP COLUMN memory_bytes;
ALTER TABLE sandbox DROP COLUMN cpu_millis;
ALTER TABLE sandbox DROP COLUMN quota_shard;
DROP TABLE api_key;
DROP TABLE quota_shard;
DROP TABLE project;
