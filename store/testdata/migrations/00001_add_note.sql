-- +goose Up
CREATE TABLE note (
    id         TEXT PRIMARY KEY,
    body       TEXT NOT NULL,
    created_at BIGINT NOT NULL -- microseconds, UTC
);
