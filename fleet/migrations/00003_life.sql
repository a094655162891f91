-- Which process of a host's agent is heard: one of two that serve under one id is refused.
-- +goose Up
ALTER TABLE host ADD COLUMN life TEXT NOT NULL DEFAULT ''; -- '' before the first heartbeat that says

-- +goose Down
ALTER TABLE host DROP COLUMN life;
