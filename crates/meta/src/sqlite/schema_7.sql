-- Schema 7: conversions. A put may be the conversion of an object: it is committed only in that version's place. What an object says
-- was written by the put `written`, whichever conversion has made its blocks since; of objects that were not converted, by their own.
ALTER TABLE uploads ADD COLUMN replaces INTEGER;
ALTER TABLE objects ADD COLUMN written INTEGER;
