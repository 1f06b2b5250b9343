-- Schema 17: how far scrubs are: of all data in the background (0), and of jobs by their numbers.
CREATE TABLE scrubs (job INTEGER PRIMARY KEY, record BLOB NOT NULL) STRICT;
