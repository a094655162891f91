-- +goose Up
ALTER TABLE sandbox ADD COLUMN restart TEXT NOT NULL DEFAULT 'NONE';
-- Whether expires_at ends a retention, by deletion, and not a lifetime.
ALTER TABLE sandbox ADD COLUMN retained BOOLEAN NOT NULL DEFAULT FALSE;
-- The number under which watchers see the row as it is; 0: changed, and not numbered since.
ALTER TABLE sandbox ADD COLUMN version BIGINT NOT NULL DEFAULT 0;

UPDATE sandbox SET expires_at = 0 WHERE state IN ('DELETING', 'DELETED');
UPDATE sandbox SET retained = TRUE WHERE state = 'SUSPENDED';
UPDATE sandbox SET retained = TRUE, expires_at = updated_at + 3600000000 WHERE state = 'FAILED';

-- What ends some day, the next first: a sweep pays for what is overdue.
CREATE INDEX sandbox_expiry ON sandbox (expires_at, id) WHERE expires_at > 0;

-- What is not numbered yet, and what was numbered after a version.
CREATE INDEX sandbox_by_version ON sandbox (project, version, id);

-- The last number that was given in a project.
CREATE TABLE sandbox_version (
    project TEXT   NOT NULL PRIMARY KEY,
    version BIGINT NOT NULL
);

-- +goose Down
DROP TABLE sandbox_version;
DROP INDEX sandbox_by_version;
DROP INDEX sandbox_expiry;
ALTER TABLE sandbox DROP COLUMN version;
ALTER TABLE sandbox DROP COLUMN retained;
ALTER TABLE sandbox DROP COLUMN restart;
