//! The contract of a transport, as tests.
