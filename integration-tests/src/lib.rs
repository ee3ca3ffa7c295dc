//! Tests of whole programs; see `tests/` and `interop/`.
