//! To come with the segments.
