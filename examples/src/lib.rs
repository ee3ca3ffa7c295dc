//! The examples are in the folder above this one, with one file for each example.
