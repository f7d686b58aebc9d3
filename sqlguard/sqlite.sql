-- name: create
CREATE TABLE IF NOT EXISTS piton_marks (
    "lock"    TEXT COLLATE BINARY NOT NULL PRIMARY KEY,
    token     INTEGER NOT NULL CHECK (token > 0),
    holder    TEXT COLLATE BINARY NOT NULL,
    sealed_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now'))
) WITHOUT ROWID

-- name: probe
SELECT "lock", token, holder, sealed_at FROM piton_marks WHERE 0

-- name: mark
SELECT token, holder FROM piton_marks WHERE "lock" = ?

-- name: seal
INSERT INTO piton_marks ("lock", token, holder) VALUES (?, ?, ?)
ON CONFLICT ("lock") DO UPDATE SET token = excluded.token, holder = excluded.holder, sealed_at = excluded.sealed_at
WHERE piton_marks.token < excluded.token
RETURNING token, holder

-- A write that changes nothing takes the write lock of the database before it
-- reads, so that the check and the caller's writes are one step, as after BEGIN
-- IMMEDIATE, and no seal can come between.
-- name: check
UPDATE piton_marks SET token = token WHERE "lock" = ? RETURNING token, holder

-- Token 0 violates the table's own check. An INSERT has the write lock before it
-- reads.
-- name: script
INSERT OR ROLLBACK INTO piton_marks ("lock", token, holder)
SELECT CAST(x':lock' AS TEXT), 0, 'stale fence, or never sealed in this database'
WHERE NOT EXISTS (SELECT 1 FROM piton_marks WHERE "lock" = CAST(x':lock' AS TEXT) AND token = :token AND holder = CAST(x':holder' AS TEXT));
