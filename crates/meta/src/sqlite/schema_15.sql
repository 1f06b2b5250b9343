-- Schema 15: whether a node came back after it was lost or away for long, and its blocks have not been checked since.
ALTER TABLE nodes ADD COLUMN came_back INTEGER NOT NULL DEFAULT 0;
