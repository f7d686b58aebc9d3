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
-- back. When a statement has waited for a row it is early, which errs on the safe
-- side: leases end later for contenders, and earlier for who takes or renews one.
-- name: row
SELECT token, holder, owner, TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), ends)
FROM piton_locks WHERE `lock` = :1

-- Each step is one statement, so that nothing stays locked when its sender freezes.

-- Takes the row of a lock that is free or the holder's own. Assignments are made from
-- left to right, with the new values of those before; LAST_INSERT_ID tells the token.
-- name: take
UPDATE piton_locks SET
    token = LAST_INSERT_ID(CASE WHEN holder = :2 AND ends > UTC_TIMESTAMP(6) AND token > :5 THEN token ELSE GREATEST(token, :5) + 1 END),
    holder = :2, owner = :3, ends = DATE_ADD(UTC_TIMESTAMP(6), INTERVAL :4 MICROSECOND)
WHERE `lock` = :1 AND (holder = :2 OR holder = '' OR ends <= UTC_TIMESTAMP(6))
AND (GREATEST(token, :5) < 9007199254740991 OR holder = :2 AND ends > UTC_TIMESTAMP(6) AND token > :5)

-- name: floor
SELECT token FROM piton_floor WHERE id = 1

-- Makes the row of a lock that has none, with a token above those of all rows that
-- were deleted. The floor stays locked meanwhile, so that no row is deleted.
-- name: add
INSERT IGNORE INTO piton_locks (`lock`, token, holder, owner, ends)
SELECT :1, LAST_INSERT_ID(GREATEST(f.token, :5) + 1), :2, :3, DATE_ADD(UTC_TIMESTAMP(6), INTERVAL :4 MICROSECOND)
FROM piton_floor AS f WHERE f.id = 1 AND GREATEST(f.token, :5) < 9007199254740991
LOCK IN SHARE MODE

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

-- Rows that have been free for long are deleted after the floor was raised above
-- them, each by a statement of its own: what is between them does no harm.
-- name: old
SELECT COALESCE(MAX(token), 0) FROM (
    SELECT token FROM piton_locks
    WHERE ends < DATE_SUB(UTC_TIMESTAMP(6), INTERVAL :1 MICROSECOND) AND token < 4503599627370496
    ORDER BY ends LIMIT 100
) AS old

-- name: raise-floor
UPDATE piton_floor SET token = :1 WHERE id = 1 AND token < :1

-- name: delete-old
DELETE FROM piton_locks
WHERE ends < DATE_SUB(UTC_TIMESTAMP(6), INTERVAL :1 MICROSECOND) AND token <= (SELECT token FROM piton_floor WHERE id = 1)
ORDER BY ends LIMIT 100

-- Many renewals in one statement; the table of grants is put in for %s. It says only
-- how many rows were renewed.
-- name: renew-batch
UPDATE piton_locks AS l JOIN (%s) AS g ON l.`lock` = g.name
SET l.ends = DATE_ADD(UTC_TIMESTAMP(6), INTERVAL g.micros MICROSECOND)
WHERE l.token = g.token AND l.holder = g.holder AND l.ends > UTC_TIMESTAMP(6)
