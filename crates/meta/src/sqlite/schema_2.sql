-- Schema 2: which bytes of a corrupt block are. A block that is corrupt and of which nothing is here is corrupt as a whole.
CREATE TABLE corrupt_bytes (
    stripe INTEGER NOT NULL,
    idx INTEGER NOT NULL,
    first INTEGER NOT NULL,
    behind INTEGER NOT NULL,
    PRIMARY KEY (stripe, idx, first)
) STRICT, WITHOUT ROWID;
