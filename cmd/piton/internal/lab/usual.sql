-- The usual lock in a database: what SET NX PX and INCR are on Redis. {} stands for
-- the prefix of this run of the laboratory; times are milliseconds of one clock, that
-- of the server or, with SQLite, of the machine since its boot.

-- name: create
CREATE TABLE {}_lock (
    name    VARCHAR(64) NOT NULL PRIMARY KEY,
    owner   VARCHAR(64) NOT NULL,
    expires BIGINT NOT NULL,
    counter BIGINT NOT NULL
)

-- name: drop
DROP TABLE IF EXISTS {}_lock

-- name: now-postgres
SELECT CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000 AS BIGINT)

-- name: now-mysql
SELECT CAST(UNIX_TIMESTAMP(SYSDATE(3)) * 1000 AS SIGNED)

-- name: add-postgres
INSERT INTO {}_lock (name, owner, expires, counter) VALUES (?, '', 0, 0) ON CONFLICT DO NOTHING

-- name: add-sqlite
INSERT OR IGNORE INTO {}_lock (name, owner, expires, counter) VALUES (?, '', 0, 0)

-- name: add-mysql
INSERT IGNORE INTO {}_lock (name, owner, expires, counter) VALUES (?, '', 0, 0)

-- name: take
UPDATE {}_lock SET owner = ?, expires = ? WHERE name = ? AND expires <= ?

-- name: increment
UPDATE {}_lock SET counter = counter + 1 WHERE name = ?

-- name: counter
SELECT counter FROM {}_lock WHERE name = ?

-- name: renew
UPDATE {}_lock SET expires = ? WHERE name = ? AND owner = ? AND expires > ?

-- name: release
UPDATE {}_lock SET expires = 0 WHERE name = ? AND owner = ?

-- name: forget
DELETE FROM {}_lock WHERE name = ?
