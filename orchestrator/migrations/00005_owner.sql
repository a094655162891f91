-- +goose Up
-- The session or build that a sandbox belongs to, which alone drives it; '' for none.
ALTER TABLE sandbox ADD COLUMN owner TEXT NOT NULL DEFAULT '';

-- +goose Down
ALTER TABLE sandbox DROP COLUMN owner;
