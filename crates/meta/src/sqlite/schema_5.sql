-- Schema 5: stripes whose put was acknowledged before all their blocks were durable, until they are. Stripes of older schemas are not
-- among them: a repair rebuilds their missing blocks.
CREATE TABLE incomplete (
    stripe INTEGER PRIMARY KEY REFERENCES stripes (id)
) STRICT;
