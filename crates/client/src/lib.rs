//! The library that people embed.
