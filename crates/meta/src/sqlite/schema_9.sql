-- Schema 9: the term under which the metadata names a stripe's blocks, and the count of updates of each of its data blocks. What was there
-- was one count of all updates, and always 0.
ALTER TABLE stripes RENAME COLUMN seq TO term;
-- None: all are 0.
ALTER TABLE stripes ADD COLUMN counts BLOB;
