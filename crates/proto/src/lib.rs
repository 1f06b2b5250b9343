//! What crosses the wire, versioned.
