-- Schema 14: the limit on repair, in the text form of RepairLimit.
ALTER TABLE cluster ADD COLUMN repair_limit TEXT NOT NULL DEFAULT 'none';
