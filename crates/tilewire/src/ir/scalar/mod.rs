//! Scalar semantics.
