//! Blocking input and output on separate threads, for descriptors that no reactor can watch. Unlike the blocking
//! threads of the runtime, these threads delay neither the runtime's shutdown nor the end of the process.

mod reader;
mod writer;

pub(crate) use reader::ThreadReader;
pub(crate) use writer::ThreadWriter;

/// The most bytes that wait between a thread and its user.
const MAX_BUFFERED: usize = 16 * 1024;
