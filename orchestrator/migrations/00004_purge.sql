-- What is deleted or over is kept for a time, then purged: each query of a purge has
-- an index that holds little else than what will be overdue one day.
-- +goose Up
-- Up to which boot what boots left is purged: process request ids and deliveries.
ALTER TABLE sandbox ADD COLUMN boots_purged BIGINT NOT NULL DEFAULT 0;
CREATE INDEX sandbox_deleted ON sandbox (deleted_at, id) WHERE deleted_at > 0;
CREATE INDEX sandbox_old_boots ON sandbox (minted_at, id) WHERE incarnation > boots_purged + 1;

-- The fleet's deliveries have one source; those of boots go with their sandbox.
CREATE INDEX delivery_of_fleet ON delivery (received_at, id) WHERE source = 'fleet';

-- The highest number of a change that is purged: whoever watched no further missed a deletion.
ALTER TABLE sandbox_version ADD COLUMN purged BIGINT NOT NULL DEFAULT 0;

-- +goose Down
ALTER TABLE sandbox_version DROP COLUMN purged;
DROP INDEX delivery_of_fleet;
DROP INDEX sandbox_old_boots;
DROP INDEX sandbox_deleted;
ALTER TABLE sandbox DROP COLUMN boots_purged;
