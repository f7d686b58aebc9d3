-- name: create-locks
CREATE TABLE IF NOT EXISTS piton_locks (
    `lock`  VARBINARY(512) NOT NULL PRIMARY KEY,
    token   BIGINT NOT NULL,
    holder  VARBINARY(512) NOT NULL,
    owner   VARBINARY(2048) NOT NULL,
    ends    DATETIME(6) NOT NULL,
    INDEX piton_locks_ends (ends)
) ENGINE = InnoDB

-- name: create-floor
CREATE TABLE IF NOT EXISTS piton_floor (
    id      SMALLINT NOT NULL PRIMARY KEY,
    token   BIGINT NOT NULL
) ENGINE = InnoDB

-- name: create-first
INSERT IGNORE INTO piton_floor (id, token) VALUES (1, 0)

-- name: probe
SELECT l.`lock`, l.token, l.holder, l.owner, l.ends FROM piton_locks AS l, piton_floor AS f WHERE f.id = 1 AND 1 = 0

-- UTC_TIMESTAMP is the time at which the statement began, and no time zone sets it
-- back: after the row is locked it is asked by a statement of its own.
-- name: row
SELECT token, holder, owner, TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), ends)
FROM piton_locks WHERE `lock` = :1

-- name: lock
SELECT token FROM piton_locks WHERE `lock` = :1 FOR UPDATE

-- name: take
UPDATE piton_locks SET token = :2, holder = :3, owner = :4, ends = DATE_ADD(UTC_TIMESTAMP(6), INTERVAL :5 MICROSECOND)
WHERE `lock` = :1

-- name: floor
SELECT token FROM piton_floor WHERE id = 1 LOCK IN SHARE MODE

-- name: add
INSERT IGNORE INTO piton_locks (`lock`, token, holder, owner, ends)
VALUES (:1, :2, :3, :4, DATE_ADD(UTC_TIMESTAMP(6), INTERVAL :5 MICROSECOND))

-- name: renew
UPDATE piton_locks SET ends = DATE_ADD(UTC_TIMESTAMP(6), INTERVAL :4 MICROSECOND)
WHERE `lock` = :1 AND token = :2 AND holder = :3 AND ends > UTC_TIMESTAMP(6)

-- Token 0 stands for whatever the holder holds.
-- name: release
UPDATE piton_locks SET holder = '', ends = UTC_TIMESTAMP(6)
WHERE `lock` = :1 AND (token = :2 OR :2 = 0) AND holder = :3 AND ends > UTC_TIMESTAMP(6)

-- name: break
UPDATE piton_locks SET holder = '', ends = UTC_TIMESTAMP(6)
WHERE `lock` = :1 AND token = :2 AND holder <> '' AND ends > UTC_TIMESTAMP(6)

-- name: list
SELECT `lock`, token, owner, TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), ends)
FROM piton_locks
WHERE LEFT(`lock`, LENGTH(:1)) = :1 AND holder <> '' AND ends > UTC_TIMESTAMP(6)
ORDER BY `lock` LIMIT :2

-- name: floor-for-update
SELECT token FROM piton_floor WHERE id = 1 FOR UPDATE

-- name: old
SELECT `lock`, token FROM piton_locks
WHERE ends < DATE_SUB(UTC_TIMESTAMP(6), INTERVAL :1 MICROSECOND) AND token < 4503599627370496
ORDER BY ends LIMIT 100 FOR UPDATE

-- name: delete
DELETE FROM piton_locks WHERE `lock` = :1

-- name: raise-floor
UPDATE piton_floor SET token = GREATEST(token, :1) WHERE id = 1
