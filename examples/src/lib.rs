//! The examples stand beside this folder, one file an example.
