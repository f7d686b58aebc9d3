-- Times are nanoseconds of the machine's boot clock (CLOCK_BOOTTIME). They mean
-- something only together with boot_id. A lock is held exactly while
-- boot_id is the present one and ends_boot_ns lies ahead; a row that is not held
-- is free and keeps the last token. ends_boot_ns of a free row says since when.

-- name: schema
CREATE TABLE piton_floor (
    id      INTEGER NOT NULL PRIMARY KEY CHECK (id = 1),
    version INTEGER NOT NULL,
    token   INTEGER NOT NULL, -- no lock without a row had a token above this
    locks   INTEGER NOT NULL  -- number of rows in piton_locks
) STRICT;
INSERT INTO piton_floor (id, version, token, locks) VALUES (1, 1, 0, 0);
CREATE TABLE piton_locks (
    lock         TEXT COLLATE BINARY NOT NULL PRIMARY KEY,
    token        INTEGER NOT NULL CHECK (token BETWEEN 1 AND 9007199254740991),
    holder       TEXT COLLATE BINARY NOT NULL, -- '' after a release
    owner        TEXT NOT NULL,
    ttl_ns       INTEGER NOT NULL,
    ends_boot_ns INTEGER NOT NULL,
    boot_id      TEXT NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX piton_locks_by_end ON piton_locks (boot_id, ends_boot_ns) WHERE token < 4503599627370496;
CREATE TRIGGER piton_locks_added AFTER INSERT ON piton_locks BEGIN
    UPDATE piton_floor SET locks = locks + 1;
END;
-- Whoever deletes a row, its token stays counted.
CREATE TRIGGER piton_locks_deleted AFTER DELETE ON piton_locks BEGIN
    UPDATE piton_floor SET locks = locks - 1, token = max(token, old.token);
END;

-- name: has_schema
SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name = 'piton_floor'

-- name: version
SELECT version FROM piton_floor

-- name: earlier_boots
SELECT count(*) FROM (
    SELECT 1 FROM piton_locks WHERE boot_id < :boot
    UNION ALL
    SELECT 1 FROM piton_locks WHERE boot_id > :boot
    LIMIT 1)

-- What an earlier boot left has ended; it is at once old enough to be collected.
-- name: end_earlier_boots
UPDATE piton_locks SET holder = '', boot_id = :boot, ends_boot_ns = -:window WHERE boot_id <> :boot

-- name: begin
BEGIN IMMEDIATE

-- name: commit
COMMIT

-- name: rollback
ROLLBACK

-- name: get
SELECT lock, token, holder, owner, ends_boot_ns FROM piton_locks
WHERE lock = :lock AND boot_id = :boot AND ends_boot_ns > :now

-- name: list
SELECT lock, token, holder, owner, ends_boot_ns FROM piton_locks
WHERE lock >= :prefix AND boot_id = :boot AND ends_boot_ns > :now
ORDER BY lock

-- A lock without a row starts above every token that a deleted row had. The
-- present holder keeps its token unless the floor demands a higher one.
-- name: take
INSERT INTO piton_locks (lock, token, holder, owner, ttl_ns, ends_boot_ns, boot_id)
VALUES (:lock, max((SELECT token FROM piton_floor), :floor) + 1, :holder, :owner, :ttl, :now + :ttl, :boot)
ON CONFLICT (lock) DO UPDATE SET
    token = CASE
        WHEN holder = excluded.holder AND boot_id = excluded.boot_id AND ends_boot_ns > :now AND token > :floor THEN token
        ELSE max(token, :floor) + 1
    END,
    holder = excluded.holder,
    owner = excluded.owner,
    ttl_ns = excluded.ttl_ns,
    ends_boot_ns = excluded.ends_boot_ns,
    boot_id = excluded.boot_id
WHERE holder = excluded.holder OR boot_id <> excluded.boot_id OR ends_boot_ns <= :now
RETURNING token

-- The oldest free rows, a few at a time: those free for longer than the window,
-- or any when there are too many rows. Rows with a token of 2^52 or more stay, so
-- that one lock with a huge floor cannot use up the numbers of all locks.
-- name: collect
DELETE FROM piton_locks WHERE lock IN (
    SELECT lock FROM piton_locks
    WHERE token < 4503599627370496 AND boot_id = :boot
        AND ends_boot_ns <= :now - CASE WHEN (SELECT locks FROM piton_floor) > :most THEN 0 ELSE :window END
    ORDER BY ends_boot_ns
    LIMIT :few)

-- name: renew
UPDATE piton_locks SET ends_boot_ns = :now + :ttl, ttl_ns = :ttl
WHERE lock = :lock AND token = :token AND holder = :holder AND boot_id = :boot AND ends_boot_ns > :now
RETURNING ttl_ns

-- Token 0 stands for whatever the holder holds.
-- name: release
UPDATE piton_locks SET holder = '', ends_boot_ns = :now
WHERE lock = :lock AND holder = :holder AND (token = :token OR :token = 0) AND boot_id = :boot AND ends_boot_ns > :now

-- name: break
UPDATE piton_locks SET holder = '', ends_boot_ns = :now
WHERE lock = :lock AND token = :token AND boot_id = :boot AND ends_boot_ns > :now
