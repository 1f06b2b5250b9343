-- Schema 10: why a block is garbage, and its length if that is known. Of what was garbage before, neither is.
ALTER TABLE garbage ADD COLUMN reason TEXT NOT NULL DEFAULT 'unexpected'
    CHECK (reason IN ('removed', 'replaced', 'repaired', 'given-up', 'unexpected'));
ALTER TABLE garbage ADD COLUMN bytes INTEGER;
-- What is not expected is freed slowly: it does not stand before the rest.
DROP INDEX garbage_by_time;
CREATE INDEX garbage_by_time ON garbage (node, reason, not_before_ms);
