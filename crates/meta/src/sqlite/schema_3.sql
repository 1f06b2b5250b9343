-- Schema 3: jobs, which outlive the coordinator that began them. Numbers are never given again, also not those of jobs that are
-- forgotten.
CREATE TABLE jobs (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    kind TEXT NOT NULL,
    subject INTEGER NOT NULL, -- what it is about: of repair-node, the node
    work BLOB NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('running', 'paused', 'done', 'failed', 'cancelled')),
    total_blocks INTEGER NOT NULL,
    total_bytes INTEGER NOT NULL,
    done_blocks INTEGER NOT NULL,
    done_bytes INTEGER NOT NULL,
    left_blocks INTEGER NOT NULL,
    left_bytes INTEGER NOT NULL,
    last_error TEXT NOT NULL,
    created_ms INTEGER NOT NULL,
    changed_ms INTEGER NOT NULL
) STRICT;
CREATE UNIQUE INDEX one_job_about_it ON jobs (kind, subject) WHERE state IN ('running', 'paused');
