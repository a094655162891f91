-- A host's instances without its tombstones, which are many and in nobody's way.
-- +goose Up
DROP INDEX instance_host;
CREATE INDEX instance_live ON instance (host, id) WHERE state <> 'ABSENT';
CREATE INDEX leftover_host ON leftover (host);

-- +goose Down
DROP INDEX leftover_host;
DROP INDEX instance_live;
CREATE INDEX instance_host ON instance (host, id);
