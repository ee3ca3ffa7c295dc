//! Frames over stdin and stdout.
