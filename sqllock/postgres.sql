-- name: create-locks
CREATE TABLE IF NOT EXISTS piton_locks (
    "lock"  text COLLATE "C" NOT NULL PRIMARY KEY,
    token   bigint NOT NULL,
    holder  text COLLATE "C" NOT NULL,
    owner   text NOT NULL,
    ends    timestamptz NOT NULL
)

-- name: create-index
CREATE INDEX IF NOT EXISTS piton_locks_ends ON piton_locks (ends)

-- name: create-floor
CREATE TABLE IF NOT EXISTS piton_floor (
    id      smallint NOT NULL PRIMARY KEY,
    token   bigint NOT NULL
)

-- name: create-first
INSERT INTO piton_floor (id, token) VALUES (1, 0) ON CONFLICT (id) DO NOTHING

-- name: probe
SELECT l."lock", l.token, l.holder, l.owner, l.ends FROM piton_locks AS l, piton_floor AS f WHERE f.id = 1 AND false

-- clock_timestamp() goes on within a statement, so it is read after the lock was
-- waited for, and within a transaction.
-- name: row
SELECT token, holder, owner, (extract(epoch FROM ends - clock_timestamp()) * 1000000)::bigint
FROM piton_locks WHERE "lock" = $1

-- Each step is one statement, so that nothing stays locked when its sender freezes.
-- A grant that a crash forgets would be granted again with the same token, and a
-- renewal that it forgets would end before its holder knows: synchronous_commit=off is
-- not honoured.

-- Takes the row of a lock that is free or the holder's own. clock_timestamp() is read
-- again when the row was waited for.
-- name: take
WITH bound AS (
    SELECT set_config('synchronous_commit', CASE current_setting('synchronous_commit') WHEN 'off' THEN 'on' ELSE current_setting('synchronous_commit') END, true) AS commit
)
UPDATE piton_locks AS l SET
    token = CASE WHEN l.holder = $2 AND l.ends > clock_timestamp() AND l.token > $5::bigint THEN l.token ELSE greatest(l.token, $5::bigint) + 1 END,
    holder = $2, owner = $3, ends = clock_timestamp() + $4::bigint * interval '1 microsecond'
FROM bound
WHERE l."lock" = $1 AND bound.commit IS NOT NULL
AND (l.holder = $2 OR l.holder = '' OR l.ends <= clock_timestamp())
AND (greatest(l.token, $5::bigint) < 9007199254740991 OR l.holder = $2 AND l.ends > clock_timestamp() AND l.token > $5::bigint)
RETURNING l.token

-- name: floor
SELECT token FROM piton_floor WHERE id = 1

-- Makes the row of a lock that has none, with a token above those of all rows that
-- were deleted. The floor stays locked meanwhile, so that no row is deleted.
-- name: add
WITH bound AS (
    SELECT set_config('synchronous_commit', CASE current_setting('synchronous_commit') WHEN 'off' THEN 'on' ELSE current_setting('synchronous_commit') END, true) AS commit
), lowest AS (
    SELECT token FROM piton_floor WHERE id = 1 FOR SHARE
)
INSERT INTO piton_locks ("lock", token, holder, owner, ends)
SELECT $1, greatest(lowest.token, $5::bigint) + 1, $2, $3, clock_timestamp() + $4::bigint * interval '1 microsecond'
FROM lowest, bound
WHERE bound.commit IS NOT NULL AND greatest(lowest.token, $5::bigint) < 9007199254740991
ON CONFLICT ("lock") DO NOTHING
RETURNING token

-- name: renew
WITH bound AS (
    SELECT set_config('synchronous_commit', CASE current_setting('synchronous_commit') WHEN 'off' THEN 'on' ELSE current_setting('synchronous_commit') END, true) AS commit
)
UPDATE piton_locks AS l SET ends = clock_timestamp() + $4::bigint * interval '1 microsecond'
FROM bound
WHERE l."lock" = $1 AND l.token = $2 AND l.holder = $3 AND l.ends > clock_timestamp() AND bound.commit IS NOT NULL

-- Many renewals in one statement, as JSON, since drivers pass arrays in ways of
-- their own. It returns those that were renewed.
-- name: renew-batch
WITH bound AS (
    SELECT set_config('synchronous_commit', CASE current_setting('synchronous_commit') WHEN 'off' THEN 'on' ELSE current_setting('synchronous_commit') END, true) AS commit
)
UPDATE piton_locks AS l SET ends = clock_timestamp() + g.micros * interval '1 microsecond'
FROM bound, json_to_recordset($1::json) AS g(n integer, name text, token bigint, holder text, micros bigint)
WHERE bound.commit IS NOT NULL AND l."lock" = g.name AND l.token = g.token AND l.holder = g.holder AND l.ends > clock_timestamp()
RETURNING g.n

-- Token 0 stands for whatever the holder holds. Who listens is told; see Channel.
-- name: release
WITH freed AS (
    UPDATE piton_locks SET holder = '', ends = clock_timestamp()
    WHERE "lock" = $1 AND (token = $2::bigint OR $2::bigint = 0) AND holder = $3 AND ends > clock_timestamp()
    RETURNING "lock"
)
SELECT pg_notify('piton_end', "lock") FROM freed

-- name: break
WITH freed AS (
    UPDATE piton_locks SET holder = '', ends = clock_timestamp()
    WHERE "lock" = $1 AND token = $2 AND holder <> '' AND ends > clock_timestamp()
    RETURNING "lock"
)
SELECT pg_notify('piton_end', "lock") FROM freed

-- name: list
SELECT "lock", token, owner, (extract(epoch FROM ends - clock_timestamp()) * 1000000)::bigint
FROM piton_locks
WHERE left("lock", length($1::text)) = $1::text AND holder <> '' AND ends > clock_timestamp()
ORDER BY "lock" LIMIT $2

-- Rows that have been free for long are deleted after the floor was raised above
-- them, each by a statement of its own: what is between them does no harm.
-- name: old
SELECT coalesce(max(token), 0) FROM (
    SELECT token FROM piton_locks
    WHERE ends < clock_timestamp() - $1::bigint * interval '1 microsecond' AND token < 4503599627370496
    ORDER BY ends LIMIT 100
) AS old

-- name: raise-floor
UPDATE piton_floor SET token = $1 WHERE id = 1 AND token < $1

-- name: delete-old
DELETE FROM piton_locks
WHERE ends < clock_timestamp() - $1::bigint * interval '1 microsecond' AND "lock" IN (
    SELECT "lock" FROM piton_locks
    WHERE ends < clock_timestamp() - $1::bigint * interval '1 microsecond' AND token <= (SELECT token FROM piton_floor WHERE id = 1)
    ORDER BY ends LIMIT 100
)
