-- What is old of one source of deliveries, without reading what is not.
-- +goose Up
CREATE INDEX delivery_received ON delivery (source, received_at);

-- +goose Down
DROP INDEX delivery_received;
