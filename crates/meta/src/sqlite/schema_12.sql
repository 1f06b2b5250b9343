-- Schema 12: nodes that an operator removed. Their numbers are never given again, and an agent with one of them is refused.
CREATE TABLE removed_nodes (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    removed_ms INTEGER NOT NULL
) STRICT;
