-- What operators say of hosts, what hosts hold, and what is given up of them.
-- +goose Up
ALTER TABLE host ADD COLUMN duty_reason TEXT NOT NULL DEFAULT '';
ALTER TABLE host ADD COLUMN duty_at BIGINT NOT NULL DEFAULT 0; -- when the duty was last set
ALTER TABLE host ADD COLUMN images TEXT NOT NULL DEFAULT ''; -- JSON list, '' for none
ALTER TABLE host ADD COLUMN gone_at BIGINT NOT NULL DEFAULT 0; -- when its instances were given up, 0 while they are not
CREATE INDEX instance_unknown ON instance (id) WHERE state = 'UNKNOWN';
CREATE INDEX instance_unknown_host ON instance (host) WHERE state = 'UNKNOWN';

-- +goose Down
DROP INDEX instance_unknown_host;
DROP INDEX instance_unknown;
ALTER TABLE host DROP COLUMN gone_at;
ALTER TABLE host DROP COLUMN images;
ALTER TABLE host DROP COLUMN duty_at;
ALTER TABLE host DROP COLUMN duty_reason;
