-- Schema 5: stripes whose put was acknowledged before all their blocks were durable, until they are. Stripes of older schemas are not
-- among them: what of them is missing is left to whoever repairs it.
CREATE TABLE incomplete (
    stripe INTEGER PRIMARY KEY REFERENCES stripes (id)
) STRICT;
