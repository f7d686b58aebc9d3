-- last_fencing_token is the newest token that has written or sealed the row,
-- last_fencing_holder whose it was: after a coordinator lost its memory two
-- holders may have the same number, and only the first is to get in.
CREATE TABLE IF NOT EXISTS account_balances (
    id                  BIGINT PRIMARY KEY,
    balance             BIGINT NOT NULL,
    last_fencing_token  BIGINT NOT NULL DEFAULT 0,
    last_fencing_holder TEXT
)
