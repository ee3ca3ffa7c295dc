//! Tests over whole programs; see `tests/` and `interop/`.
