-- Schema 4: which blocks a job has left, the first of them, and why. Of jobs of older schemas none are known.
ALTER TABLE jobs ADD COLUMN left_list BLOB NOT NULL DEFAULT X'0100';
