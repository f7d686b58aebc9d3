-- name: create
CREATE TABLE IF NOT EXISTS piton_marks (
    "lock"    text COLLATE "C" NOT NULL PRIMARY KEY,
    token     bigint NOT NULL CHECK (token > 0),
    holder    text COLLATE "C" NOT NULL,
    sealed_at timestamptz NOT NULL DEFAULT clock_timestamp()
)

-- name: probe
SELECT "lock", token, holder, sealed_at FROM piton_marks WHERE false

-- name: mark
SELECT token, holder FROM piton_marks WHERE "lock" = $1

-- The CTE sets the bounds of this transaction before the row is waited for; it
-- only ever lowers what is in force. A seal that a crash forgets would let an
-- old holder in again, so synchronous_commit=off is not honoured here.
-- NOT EXISTS keeps a repeated or a stale seal from waiting for open transactions.
-- name: seal
WITH bound AS (
    SELECT set_config('lock_timeout', coalesce(least(nullif((extract(epoch FROM current_setting('lock_timeout')::interval) * 1000)::bigint, 0), nullif($4::bigint, 0)), 0)::text, true),
           set_config('idle_in_transaction_session_timeout', coalesce(least(nullif((extract(epoch FROM current_setting('idle_in_transaction_session_timeout')::interval) * 1000)::bigint, 0), nullif($5::bigint, 0)), 0)::text, true),
           set_config('synchronous_commit', CASE current_setting('synchronous_commit') WHEN 'off' THEN 'on' ELSE current_setting('synchronous_commit') END, true)
)
INSERT INTO piton_marks AS m ("lock", token, holder, sealed_at)
SELECT $1::text, $2::bigint, $3::text, clock_timestamp() FROM bound
WHERE NOT EXISTS (SELECT 1 FROM piton_marks AS seen WHERE seen."lock" = $1::text AND seen.token >= $2::bigint)
ON CONFLICT ("lock") DO UPDATE SET token = excluded.token, holder = excluded.holder, sealed_at = excluded.sealed_at
WHERE m.token < excluded.token
RETURNING m.token, m.holder

-- FOR SHARE lets the writers of one holder run side by side and makes a newer
-- seal wait. The bounds are set below the row lock: the CTE is scanned first.
-- name: check
WITH bound AS (
    SELECT set_config('lock_timeout', coalesce(least(nullif((extract(epoch FROM current_setting('lock_timeout')::interval) * 1000)::bigint, 0), nullif($2::bigint, 0)), 0)::text, true) AS wait,
           set_config('idle_in_transaction_session_timeout', coalesce(least(nullif((extract(epoch FROM current_setting('idle_in_transaction_session_timeout')::interval) * 1000)::bigint, 0), nullif($3::bigint, 0)), 0)::text, true),
           set_config('statement_timeout', coalesce(least(nullif((extract(epoch FROM current_setting('statement_timeout')::interval) * 1000)::bigint, 0), nullif($4::bigint, 0)), 0)::text, true)
)
SELECT m.token, m.holder, txid_current()
FROM bound, piton_marks AS m
WHERE m."lock" = $1 AND bound.wait IS NOT NULL
FOR SHARE OF m

-- name: status
SELECT coalesce(txid_status($1::bigint), '')

-- name: script
DO $piton$
BEGIN
    PERFORM set_config('idle_in_transaction_session_timeout', '30s', true)
    WHERE current_setting('idle_in_transaction_session_timeout')::interval NOT BETWEEN interval '1 ms' AND interval '30 s';
    PERFORM FROM piton_marks
    WHERE "lock" = convert_from(decode(':lock', 'hex'), 'UTF8') AND token = :token AND holder = convert_from(decode(':holder', 'hex'), 'UTF8')
    FOR SHARE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'piton: the fence with token :token is stale, or was never sealed in this database';
    END IF;
END
$piton$;
