-- Schema 22: how many bytes a job has sent over links (0 for jobs of older schemas), and the estimates of its remaining time when a quarter
-- and half of the work were done: when each was made, and the time. NULL: it was not made.
ALTER TABLE jobs ADD COLUMN moved_bytes INTEGER NOT NULL DEFAULT 0;
ALTER TABLE jobs ADD COLUMN quarter_made_ms INTEGER;
ALTER TABLE jobs ADD COLUMN quarter_remaining_ms INTEGER;
ALTER TABLE jobs ADD COLUMN half_made_ms INTEGER;
ALTER TABLE jobs ADD COLUMN half_remaining_ms INTEGER;
