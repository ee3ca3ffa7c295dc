//! The `streamable` binding.
