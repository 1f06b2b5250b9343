-- The key of a put has 128 bits. Puts with a key of 64 bits keep it.
ALTER TABLE uploads ADD COLUMN key_bytes BLOB NOT NULL DEFAULT x'';
UPDATE uploads SET key_bytes = unhex(printf('%032x', put_key)) WHERE put_key <> 0;
ALTER TABLE uploads DROP COLUMN put_key;
ALTER TABLE uploads RENAME COLUMN key_bytes TO put_key;
