//! Metadata behind one interface; SQLite.
