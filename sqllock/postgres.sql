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

-- A grant that a crash forgets would be granted again with the same token, so
-- synchronous_commit=off is not honoured.
-- name: lock
WITH bound AS (
    SELECT set_config('synchronous_commit', CASE current_setting('synchronous_commit') WHEN 'off' THEN 'on' ELSE current_setting('synchronous_commit') END, true) AS commit
)
SELECT l.token FROM bound, piton_locks AS l WHERE l."lock" = $1 AND bound.commit IS NOT NULL FOR UPDATE OF l

-- name: take
UPDATE piton_locks SET token = $2, holder = $3, owner = $4, ends = clock_timestamp() + $5::bigint * interval '1 microsecond'
WHERE "lock" = $1

-- name: floor
SELECT token FROM piton_floor WHERE id = 1 FOR SHARE

-- name: add
INSERT INTO piton_locks ("lock", token, holder, owner, ends)
VALUES ($1, $2, $3, $4, clock_timestamp() + $5::bigint * interval '1 microsecond')
ON CONFLICT ("lock") DO NOTHING

-- name: renew
UPDATE piton_locks SET ends = clock_timestamp() + $4::bigint * interval '1 microsecond'
WHERE "lock" = $1 AND token = $2 AND holder = $3 AND ends > clock_timestamp()

-- Many renewals in one statement, as JSON, since drivers pass arrays in ways of
-- their own. It returns those that were renewed.
-- name: renew-batch
UPDATE piton_locks AS l SET ends = clock_timestamp() + g.micros * interval '1 microsecond'
FROM json_to_recordset($1::json) AS g(n integer, name text, token bigint, holder text, micros bigint)
WHERE l."lock" = g.name AND l.token = g.token AND l.holder = g.holder AND l.ends > clock_timestamp()
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

-- name: floor-for-update
SELECT token FROM piton_floor WHERE id = 1 FOR UPDATE NOWAIT

-- name: old
SELECT "lock", token FROM piton_locks
WHERE ends < clock_timestamp() - $1::bigint * interval '1 microsecond' AND token < 4503599627370496
ORDER BY ends LIMIT 100 FOR UPDATE SKIP LOCKED

-- name: delete
DELETE FROM piton_locks WHERE "lock" = $1

-- name: raise-floor
UPDATE piton_floor SET token = $1 WHERE id = 1 AND token < $1
