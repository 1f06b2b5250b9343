-- Schema 16: nodes and disks that are being drained: their blocks move elsewhere, and they get no new ones.
ALTER TABLE nodes ADD COLUMN draining INTEGER NOT NULL DEFAULT 0;
ALTER TABLE disks ADD COLUMN draining INTEGER NOT NULL DEFAULT 0;
