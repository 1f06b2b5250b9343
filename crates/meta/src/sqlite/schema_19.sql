-- Schema 19: stripes that are open for updates (`opening`, `open`), or were a while ago: `settled` until all their blocks are closed, then
-- `closed`. A row belongs to its stripe and goes with it. `settled_ms`: since when it is settled. `updates` counts how often a stripe of an object
-- was opened; of a conversion, it is the count of the object when the conversion began.
CREATE TABLE stripe_terms (
    stripe INTEGER PRIMARY KEY REFERENCES stripes (id),
    state TEXT NOT NULL CHECK (state IN ('opening', 'open', 'settled', 'closed')),
    record BLOB NOT NULL,
    settled_ms INTEGER NOT NULL
) STRICT;
CREATE INDEX stripe_terms_closed ON stripe_terms (settled_ms) WHERE state = 'closed';
ALTER TABLE objects ADD COLUMN updates INTEGER NOT NULL DEFAULT 0;
ALTER TABLE uploads ADD COLUMN updates INTEGER NOT NULL DEFAULT 0;
