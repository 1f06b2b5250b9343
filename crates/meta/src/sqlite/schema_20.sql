-- Schema 20: a disk that was moved to another node with its blocks: `moved_to` is its number there. The row of before stays until nothing is left of it;
-- its id gets its number as a suffix, because the disk keeps the id.
ALTER TABLE disks ADD COLUMN moved_to INTEGER REFERENCES disks (number);
CREATE INDEX disks_moved ON disks (moved_to) WHERE moved_to IS NOT NULL;
