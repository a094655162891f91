-- Every live claim is on a pending operation, and operation_pending finds those: an index on claims alone cost two
-- writes for each operation.
-- +goose Up
DROP INDEX operation_held;

-- +goose Down
CREATE INDEX operation_held ON operation (claim_expires) WHERE claim_expires > 0;
