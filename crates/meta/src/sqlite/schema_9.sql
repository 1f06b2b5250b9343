-- Schema 9: the term under which the metadata names a stripe's blocks, the count of updates of each of its data blocks, and puts' keys.
-- What was there of updates was one count of all of them, and always 0.
ALTER TABLE stripes RENAME COLUMN seq TO term;
-- None: all are 0.
ALTER TABLE stripes ADD COLUMN counts BLOB;
-- What a put's writer shows with each call. 0: nothing is asked for, of a put that began before.
ALTER TABLE uploads ADD COLUMN put_key INTEGER NOT NULL DEFAULT 0;
