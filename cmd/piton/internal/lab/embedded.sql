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

-- One statement for each column in which a lock's name may stand.
-- name: columns
SELECT 'DELETE FROM "' || t.name || '" WHERE CAST("' || c.name || '" AS TEXT) = ?'
FROM sqlite_master AS t, pragma_table_info(t.name) AS c
WHERE t.type = 'table' AND t.name LIKE 'piton%' AND t.name NOT IN ('piton_marks', '{}_account', '{}_journal')

-- name: floor
SELECT token FROM piton_floor

-- name: forget-floor
UPDATE piton_floor SET token = ?
