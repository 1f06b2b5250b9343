-- Schema 1. Times are milliseconds since 1970; blobs begin with their version (see packed.rs).
CREATE TABLE cluster (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    id TEXT NOT NULL,
    incarnation TEXT NOT NULL,
    epoch INTEGER NOT NULL,
    nodes_high_water INTEGER NOT NULL,
    disks_high_water INTEGER NOT NULL,
    stripes_high_water INTEGER NOT NULL,
    uploads_high_water INTEGER NOT NULL,
    created_ms INTEGER NOT NULL
) STRICT;

CREATE TABLE nodes (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    rack TEXT NOT NULL,
    zone TEXT NOT NULL,
    data_address TEXT NOT NULL,
    control_address TEXT NOT NULL,
    up INTEGER NOT NULL
) STRICT;

CREATE TABLE disks (
    number INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    node INTEGER NOT NULL REFERENCES nodes (id),
    path TEXT NOT NULL,
    total_bytes INTEGER NOT NULL,
    failed INTEGER NOT NULL
) STRICT;
CREATE INDEX disks_of_node ON disks (node);

CREATE TABLE policies (
    name TEXT PRIMARY KEY,
    code TEXT NOT NULL,
    block_len INTEGER NOT NULL,
    cell_len INTEGER NOT NULL,
    failure_domain TEXT NOT NULL CHECK (failure_domain IN ('node', 'rack')),
    ack_missing_max INTEGER NOT NULL,
    is_default INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX one_default_policy ON policies (is_default) WHERE is_default = 1;

CREATE TABLE buckets (
    name TEXT PRIMARY KEY,
    policy TEXT NOT NULL REFERENCES policies (name),
    created_ms INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX buckets_of_policy ON buckets (policy);

-- The version is the number of the upload that made the object.
CREATE TABLE objects (
    version INTEGER PRIMARY KEY,
    bucket TEXT NOT NULL REFERENCES buckets (name),
    key TEXT NOT NULL,
    size INTEGER NOT NULL,
    code TEXT NOT NULL,
    block_len INTEGER NOT NULL,
    cell_len INTEGER NOT NULL,
    alpha INTEGER NOT NULL,
    stripes INTEGER NOT NULL,
    created_ms INTEGER NOT NULL,
    UNIQUE (bucket, key)
) STRICT;

CREATE TABLE uploads (
    id INTEGER PRIMARY KEY,
    bucket TEXT NOT NULL REFERENCES buckets (name),
    key TEXT NOT NULL,
    code TEXT NOT NULL,
    block_len INTEGER NOT NULL,
    cell_len INTEGER NOT NULL,
    alpha INTEGER NOT NULL,
    failure_domain TEXT NOT NULL,
    ack_missing_max INTEGER NOT NULL,
    created_ms INTEGER NOT NULL,
    expires_ms INTEGER NOT NULL
) STRICT;
CREATE INDEX uploads_by_expiry ON uploads (expires_ms);
CREATE INDEX uploads_of_bucket ON uploads (bucket);

-- A stripe is a put's until the put is committed, and the object's from then on.
CREATE TABLE stripes (
    id INTEGER PRIMARY KEY,
    upload INTEGER REFERENCES uploads (id),
    object INTEGER REFERENCES objects (version),
    number INTEGER NOT NULL,
    ended INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    layout BLOB NOT NULL,
    placement BLOB NOT NULL,
    units BLOB NOT NULL,
    CHECK ((upload IS NULL) <> (object IS NULL)),
    CHECK (ended = 1 OR object IS NULL)
) STRICT;
CREATE UNIQUE INDEX stripes_of_upload ON stripes (upload, number) WHERE upload IS NOT NULL;
CREATE UNIQUE INDEX stripes_of_object ON stripes (object, number) WHERE object IS NOT NULL;

-- Says of every stripe that has ended what its placement says, the other way round.
CREATE TABLE block_at (
    node INTEGER NOT NULL,
    disk INTEGER NOT NULL,
    stripe INTEGER NOT NULL REFERENCES stripes (id),
    idx INTEGER NOT NULL,
    generation INTEGER NOT NULL,
    PRIMARY KEY (node, disk, stripe, idx)
) STRICT, WITHOUT ROWID;
CREATE INDEX block_at_stripe ON block_at (stripe);

CREATE TABLE allocations (
    stripe INTEGER NOT NULL,
    idx INTEGER NOT NULL,
    generation INTEGER NOT NULL,
    node INTEGER NOT NULL,
    disk INTEGER NOT NULL,
    upload INTEGER REFERENCES uploads (id),
    epoch INTEGER NOT NULL,
    expires_ms INTEGER NOT NULL,
    PRIMARY KEY (stripe, idx, generation)
) STRICT, WITHOUT ROWID;
CREATE INDEX allocations_of_upload ON allocations (upload);

CREATE TABLE garbage (
    node INTEGER NOT NULL,
    stripe INTEGER NOT NULL,
    idx INTEGER NOT NULL,
    generation INTEGER NOT NULL,
    disk INTEGER NOT NULL,
    not_before_ms INTEGER NOT NULL,
    PRIMARY KEY (node, stripe, idx, generation)
) STRICT, WITHOUT ROWID;
CREATE INDEX garbage_by_time ON garbage (node, not_before_ms);
