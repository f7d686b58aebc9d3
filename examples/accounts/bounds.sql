-- Set for this transaction only; numbers are milliseconds.
SELECT set_config('idle_in_transaction_session_timeout', $1, true),
       set_config('lock_timeout', $1, true),
       set_config('statement_timeout', $1, true)
