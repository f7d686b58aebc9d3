-- name: create
CREATE TABLE IF NOT EXISTS piton_marks (
    `lock`    VARBINARY(512) NOT NULL PRIMARY KEY,
    token     BIGINT NOT NULL,
    holder    VARBINARY(512) NOT NULL,
    sealed_at TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6)
) ENGINE = InnoDB

-- name: probe
SELECT `lock`, token, holder, sealed_at FROM piton_marks WHERE 1 = 0

-- name: mark
SELECT token, holder FROM piton_marks WHERE `lock` = ?

-- The number of affected rows depends on the client's flags; the mark is read
-- back instead. token is assigned last because the other assignments compare it.
-- name: seal
INSERT INTO piton_marks (`lock`, token, holder, sealed_at) VALUES (?, ?, ?, CURRENT_TIMESTAMP(6))
ON DUPLICATE KEY UPDATE
    holder    = IF(token < VALUES(token), VALUES(holder), holder),
    sealed_at = IF(token < VALUES(token), VALUES(sealed_at), sealed_at),
    token     = GREATEST(token, VALUES(token))

-- The outer row is the newest one and stays share-locked. The subquery reads the
-- snapshot of the transaction: 0 means that the snapshot is older than the seal.
-- name: check
SELECT m.token, m.holder,
       (SELECT COUNT(*) FROM piton_marks AS s WHERE s.`lock` = m.`lock` AND s.token = m.token AND s.holder = m.holder)
FROM piton_marks AS m
WHERE m.`lock` = ?
LOCK IN SHARE MODE

-- name: version
SELECT VERSION()

-- Without autocommit what follows a statement that commits by itself is a new
-- transaction, and not committed one by one.
-- name: bind-mariadb
SET @piton_wait = @@SESSION.innodb_lock_wait_timeout,
    @piton_idle = @@SESSION.idle_transaction_timeout,
    @piton_statement = @@SESSION.max_statement_time,
    @piton_autocommit = @@SESSION.autocommit,
    SESSION autocommit = 0,
    SESSION innodb_lock_wait_timeout = LEAST(@@SESSION.innodb_lock_wait_timeout, :wait),
    SESSION idle_transaction_timeout = IF(@@SESSION.idle_transaction_timeout = 0, :idle, LEAST(@@SESSION.idle_transaction_timeout, :idle)),
    SESSION max_statement_time = IF(@@SESSION.max_statement_time = 0 OR :statement = 0, GREATEST(@@SESSION.max_statement_time, :statement), LEAST(@@SESSION.max_statement_time, :statement))

-- name: unbind-mariadb
SET SESSION innodb_lock_wait_timeout = @piton_wait,
    SESSION idle_transaction_timeout = @piton_idle,
    SESSION max_statement_time = @piton_statement,
    SESSION autocommit = @piton_autocommit

-- MySQL has no bound for an idle transaction; wait_timeout ends the idle
-- connection, which comes to the same. It bounds no statement but SELECT.
-- name: bind-mysql
SET @piton_wait = @@SESSION.innodb_lock_wait_timeout,
    @piton_idle = @@SESSION.wait_timeout,
    @piton_autocommit = @@SESSION.autocommit,
    SESSION autocommit = 0,
    SESSION innodb_lock_wait_timeout = LEAST(@@SESSION.innodb_lock_wait_timeout, :wait),
    SESSION wait_timeout = LEAST(@@SESSION.wait_timeout, :idle)

-- name: unbind-mysql
SET SESSION innodb_lock_wait_timeout = @piton_wait,
    SESSION wait_timeout = @piton_idle,
    SESSION autocommit = @piton_autocommit

-- Outside of a procedure only a failing expression ends a batch: a scalar
-- subquery of two rows.
-- name: script
SET @piton_admitted = NULL;
SELECT token INTO @piton_admitted FROM piton_marks WHERE `lock` = x':lock' AND token = :token AND holder = x':holder' LOCK IN SHARE MODE;
SELECT IF(@piton_admitted IS NULL, (SELECT 'stale fence' UNION SELECT 'stale fence, or never sealed in this database'), 'admitted') AS piton;
