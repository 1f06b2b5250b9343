-- Schema 6: copies. A block is named by its index and its copy; until now every copy was 0.
ALTER TABLE policies ADD COLUMN replicas INTEGER NOT NULL DEFAULT 1 CHECK (replicas >= 1);
ALTER TABLE uploads ADD COLUMN replicas INTEGER NOT NULL DEFAULT 1;
-- A node has one block of a stripe: the key stays.
ALTER TABLE block_at ADD COLUMN copy INTEGER NOT NULL DEFAULT 0;

CREATE TABLE allocations_6 (
    stripe INTEGER NOT NULL,
    idx INTEGER NOT NULL,
    copy INTEGER NOT NULL,
    generation INTEGER NOT NULL,
    node INTEGER NOT NULL,
    disk INTEGER NOT NULL,
    upload INTEGER REFERENCES uploads (id),
    epoch INTEGER NOT NULL,
    expires_ms INTEGER NOT NULL,
    PRIMARY KEY (stripe, idx, copy, generation)
) STRICT, WITHOUT ROWID;
INSERT INTO allocations_6 SELECT stripe, idx, 0, generation, node, disk, upload, epoch, expires_ms FROM allocations;
DROP TABLE allocations;
ALTER TABLE allocations_6 RENAME TO allocations;
CREATE INDEX allocations_of_upload ON allocations (upload);

CREATE TABLE garbage_6 (
    node INTEGER NOT NULL,
    stripe INTEGER NOT NULL,
    idx INTEGER NOT NULL,
    copy INTEGER NOT NULL,
    generation INTEGER NOT NULL,
    disk INTEGER NOT NULL,
    not_before_ms INTEGER NOT NULL,
    PRIMARY KEY (node, stripe, idx, copy, generation)
) STRICT, WITHOUT ROWID;
INSERT INTO garbage_6 SELECT node, stripe, idx, 0, generation, disk, not_before_ms FROM garbage;
DROP TABLE garbage;
ALTER TABLE garbage_6 RENAME TO garbage;
CREATE INDEX garbage_by_time ON garbage (node, not_before_ms);

CREATE TABLE corrupt_bytes_6 (
    stripe INTEGER NOT NULL,
    idx INTEGER NOT NULL,
    copy INTEGER NOT NULL,
    first INTEGER NOT NULL,
    behind INTEGER NOT NULL,
    PRIMARY KEY (stripe, idx, copy, first)
) STRICT, WITHOUT ROWID;
INSERT INTO corrupt_bytes_6 SELECT stripe, idx, 0, first, behind FROM corrupt_bytes;
DROP TABLE corrupt_bytes;
ALTER TABLE corrupt_bytes_6 RENAME TO corrupt_bytes;
