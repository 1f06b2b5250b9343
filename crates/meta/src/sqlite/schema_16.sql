-- Schema 16: nodes and disks that are being drained: their blocks move elsewhere, and they get no new ones. 1: it is being drained; 2 (of a disk):
-- a drain of it was ended, so none begins without a person.
ALTER TABLE nodes ADD COLUMN draining INTEGER NOT NULL DEFAULT 0;
ALTER TABLE disks ADD COLUMN draining INTEGER NOT NULL DEFAULT 0;
