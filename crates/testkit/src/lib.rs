//! Tests for those who build on Rescind or beside it.

pub mod conformance;
