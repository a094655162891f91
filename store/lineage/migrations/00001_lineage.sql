-- Which cluster this database belongs to; at most one row. Instants are
-- microseconds since 1970, UTC; 0 is none.
-- +goose Up
CREATE TABLE lineage (
    single       BIGINT NOT NULL PRIMARY KEY CHECK (single = 1),
    cluster      TEXT   NOT NULL, -- '' before it is known
    epoch        BIGINT NOT NULL, -- 0 before the first recovery
    recovered_at BIGINT NOT NULL, -- when it was last said to be restored
    forgotten_at BIGINT NOT NULL  -- what is older and not recorded is nobody's
);

-- +goose Down
DROP TABLE lineage;
