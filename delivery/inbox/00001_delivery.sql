-- +goose Up
CREATE TABLE delivery (
    source      TEXT   NOT NULL, -- who sent it, as authenticated
    id          TEXT   NOT NULL, -- the event's id, unique for its source
    kind        TEXT   NOT NULL,
    received_at BIGINT NOT NULL, -- microseconds, UTC
    body_sha256 TEXT   NOT NULL, -- hexadecimal
    outcome     TEXT   NOT NULL, -- for operators; '' until noted
    PRIMARY KEY (source, id)
);

-- +goose Down
DROP TABLE delivery;
