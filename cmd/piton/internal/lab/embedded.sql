-- The usual lock, on the embedded coordinator's file: what SET NX PX and INCR
-- are on Redis. {} stands for the prefix of this run of the laboratory; the times
-- are milliseconds of the machine's boot clock.

-- name: create-lock
CREATE TABLE {}_lock (name TEXT PRIMARY KEY, owner TEXT NOT NULL, expires INTEGER NOT NULL)

-- name: create-counter
CREATE TABLE {}_counter (name TEXT PRIMARY KEY, n INTEGER NOT NULL)

-- name: drop-lock
DROP TABLE IF EXISTS {}_lock

-- name: drop-counter
DROP TABLE IF EXISTS {}_counter

-- name: acquire
INSERT INTO {}_lock (name, owner, expires) VALUES (?, ?, ?)
ON CONFLICT (name) DO UPDATE SET owner = excluded.owner, expires = excluded.expires
WHERE {}_lock.expires <= ?

-- name: increment
INSERT INTO {}_counter (name, n) VALUES (?, 1)
ON CONFLICT (name) DO UPDATE SET n = n + 1
RETURNING n

-- name: renew
UPDATE {}_lock SET expires = ? WHERE name = ? AND owner = ? AND expires > ?

-- name: release
DELETE FROM {}_lock WHERE name = ? AND owner = ?

-- name: forget-lock
DELETE FROM {}_lock WHERE name = ?

-- name: forget-counter
DELETE FROM {}_counter WHERE name = ?
