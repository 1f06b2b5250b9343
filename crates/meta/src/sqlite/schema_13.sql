-- Schema 13: the state of a node by its name, and since when. How long a node of an earlier schema has been down is unknown: it counts
-- from here. And whether lost blocks are rebuilt without a person.
ALTER TABLE nodes ADD COLUMN state TEXT NOT NULL DEFAULT 'up';
ALTER TABLE nodes ADD COLUMN since_ms INTEGER NOT NULL DEFAULT 0;
UPDATE nodes SET state = CASE up WHEN 0 THEN 'down' ELSE 'up' END, since_ms = unixepoch() * 1000;
ALTER TABLE nodes DROP COLUMN up;
ALTER TABLE cluster ADD COLUMN auto_repair INTEGER NOT NULL DEFAULT 1;
