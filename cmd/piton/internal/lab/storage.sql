-- The laboratory's own tables. {} stands for the prefix of this run of it; a
-- question mark is a parameter and becomes $n on PostgreSQL.

-- name: create-account
CREATE TABLE {}_account (
    id         VARCHAR(64) NOT NULL PRIMARY KEY,
    balance    BIGINT NOT NULL,
    previous   BIGINT NOT NULL,
    last_token BIGINT NOT NULL
)

-- name: create-journal-sqlite
CREATE TABLE {}_journal (
    seq       INTEGER PRIMARY KEY AUTOINCREMENT,
    account   VARCHAR(64) NOT NULL,
    kind      VARCHAR(16) NOT NULL,
    worker    BIGINT NOT NULL,
    token     BIGINT NOT NULL,
    was       BIGINT NOT NULL,
    becomes   BIGINT NOT NULL
)

-- name: create-journal-postgres
CREATE TABLE {}_journal (
    seq       BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    account   VARCHAR(64) NOT NULL,
    kind      VARCHAR(16) NOT NULL,
    worker    BIGINT NOT NULL,
    token     BIGINT NOT NULL,
    was       BIGINT NOT NULL,
    becomes   BIGINT NOT NULL
)

-- name: create-journal-mysql
CREATE TABLE {}_journal (
    seq       BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    account   VARCHAR(64) NOT NULL,
    kind      VARCHAR(16) NOT NULL,
    worker    BIGINT NOT NULL,
    token     BIGINT NOT NULL,
    was       BIGINT NOT NULL,
    becomes   BIGINT NOT NULL
) ENGINE = InnoDB

-- name: drop-account
DROP TABLE IF EXISTS {}_account

-- name: drop-journal
DROP TABLE IF EXISTS {}_journal

-- name: open-account
INSERT INTO {}_account (id, balance, previous, last_token) VALUES (?, ?, 0, 0)

-- name: balance
SELECT balance FROM {}_account WHERE id = ?

-- The old balance is kept first, because MySQL assigns from left to right.
-- name: write
UPDATE {}_account SET previous = balance, balance = ? WHERE id = ?

-- The rule as it is usually written.
-- name: write-compare
UPDATE {}_account SET previous = balance, balance = ?, last_token = ? WHERE id = ? AND last_token < ?

-- name: journal-write
INSERT INTO {}_journal (account, kind, worker, token, was, becomes)
SELECT id, 'write', ?, ?, previous, balance FROM {}_account WHERE id = ?

-- name: journal-note
INSERT INTO {}_journal (account, kind, worker, token, was, becomes) VALUES (?, ?, ?, ?, 0, 0)

-- name: history
SELECT seq, kind, worker, token, was, becomes FROM {}_journal WHERE account = ? ORDER BY seq

-- name: forget-mark
DELETE FROM piton_marks WHERE "lock" = ?

-- name: forget-mark-mysql
DELETE FROM piton_marks WHERE `lock` = ?

-- name: marks
SELECT COUNT(*) FROM piton_marks

-- name: drop-marks
DROP TABLE piton_marks

-- name: exclude-postgres
LOCK TABLE piton_marks IN ACCESS EXCLUSIVE MODE

-- name: exclude-mysql
LOCK TABLES piton_marks WRITE

-- name: exclude-sqlite
UPDATE piton_marks SET token = token WHERE 0
