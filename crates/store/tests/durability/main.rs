//! What survives crashes: of the journal, and of blocks, on simulated files that lose any part of what is not synced.

mod crashes;
mod journal;
