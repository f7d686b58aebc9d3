-- last_fencing_token is the newest token that has written or sealed the row,
-- last_fencing_holder whose it was: after a coordinator lost its memory two
-- holders may have one number, and only the first of them is to get in.
-- A table that exists already gets them by ALTER TABLE ... ADD COLUMN.
SELECT pg_advisory_xact_lock(7013001); -- CREATE ... IF NOT EXISTS fails when two run at once
CREATE TABLE IF NOT EXISTS account_balances (
    id                  bigint PRIMARY KEY,
    balance             bigint NOT NULL DEFAULT 0,
    last_fencing_token  bigint NOT NULL DEFAULT 0,
    last_fencing_holder text
);
