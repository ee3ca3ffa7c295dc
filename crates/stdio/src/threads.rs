//! Blocking input and output on threads of their own, for what no reactor can watch. Unlike the runtime's own blocking
//! threads these hold up neither the runtime's shutdown nor the process's end.

mod reader;
mod writer;

pub(crate) use reader::ThreadReader;
pub(crate) use writer::ThreadWriter;

/// The most a thread holds that was not taken from it, in bytes.
const HELD: usize = 16 * 1024;
