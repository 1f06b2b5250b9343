-- Schema 21: appends, and policies that refuse updates in place. `append`: the number of the append that began last; `append_until_ms`: until when no
-- other one begins; 0 if it has ended, and its writer has no update on its way. `append_ended`: the number of the append that ended
-- last. `grows_to`: of a stripe that is being opened, how many bytes of the object it holds once it is open; 0: as many as before.
ALTER TABLE objects ADD COLUMN append INTEGER NOT NULL DEFAULT 0;
ALTER TABLE objects ADD COLUMN append_until_ms INTEGER NOT NULL DEFAULT 0;
ALTER TABLE objects ADD COLUMN append_ended INTEGER NOT NULL DEFAULT 0;
ALTER TABLE stripe_terms ADD COLUMN grows_to INTEGER NOT NULL DEFAULT 0;
ALTER TABLE policies ADD COLUMN updates TEXT NOT NULL DEFAULT 'allowed' CHECK (updates IN ('allowed', 'refused'));
