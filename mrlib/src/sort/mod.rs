//! The map-side sort buffer.
