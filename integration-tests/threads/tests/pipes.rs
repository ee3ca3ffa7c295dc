//! A thread that reads or writes a pipe, and the task at its other side: each pair of simultaneous events.

use std::future::poll_fn;
use std::io::{self, Read, Write};
use std::pin::Pin;
use std::sync::Arc;

use rescind_threads::tests;
use shuttle::future::block_on;
use shuttle::sync::Mutex;
use shuttle::sync::atomic::{AtomicBool, Ordering};
use shuttle::thread as tasks;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use threads::{ThreadReader, ThreadWriter};

#[path = "../../../crates/stdio/src/threads.rs"]
mod threads;

/// The imports of this file.
mod sync {
    pub(crate) use shuttle::sync::{Condvar, Mutex, MutexGuard};
    pub(crate) use shuttle::thread;

    /// So small that each side waits for the other.
    pub(crate) const MAX_BUFFERED: usize = 2;
}

const TEXT: &[u8] = b"eleven bits";

/// A pipe that delivers one piece at a time, and then its end.
struct Source {
    left: &'static [u8],
    end: Option<io::ErrorKind>,
}

impl Read for Source {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        tasks::yield_now();
        match self.end.take_if(|_| self.left.is_empty()) {
            Some(kind) => Err(kind.into()),
            None => self.left.read(out),
        }
    }
}

async fn read_all(reader: &mut ThreadReader, most: usize) -> (Vec<u8>, Option<io::ErrorKind>) {
    let mut all = Vec::new();
    while all.len() < most {
        let mut piece = [0; 3];
        let mut out = ReadBuf::new(&mut piece);
        if let Err(error) = poll_fn(|cx| Pin::new(&mut *reader).poll_read(cx, &mut out)).await {
            return (all, Some(error.kind()));
        }
        if out.filled().is_empty() {
            break;
        }
        all.extend_from_slice(out.filled());
    }
    (all, None)
}

fn reading(end: Option<io::ErrorKind>, leaves: bool) {
    let Ok(mut reader) = ThreadReader::new(Source { left: TEXT, end }) else { panic!("no thread") };
    let most = if leaves { 3 } else { usize::MAX };
    let (all, error) = block_on(read_all(&mut reader, most));
    if leaves {
        assert!(TEXT.starts_with(&all), "I1: read was {all:?}");
    } else {
        assert_eq!((&*all, error), (TEXT, end), "I1, L3: all is read, and then how it ended");
        // The error was reported once. After it the input has ended.
        assert_eq!(block_on(read_all(&mut reader, 1)), (Vec::new(), None), "L3");
    }
    // The thread must end too: one that waits forever is found as a hang.
}

tests! {
    "L3";
    pipe_read_to_its_end: reading(None, false);
    pipe_read_and_broken: reading(Some(io::ErrorKind::ConnectionReset), false);
    pipe_read_and_dropped: reading(None, true);
}

/// A pipe that accepts this many bytes, and keeps them.
struct Target {
    taken: Arc<Mutex<Vec<u8>>>,
    room: usize,
    is_gone: Arc<AtomicBool>,
}

impl Drop for Target {
    fn drop(&mut self) {
        self.is_gone.store(true, Ordering::SeqCst);
    }
}

impl Write for Target {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        tasks::yield_now();
        if self.room == 0 {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let count = bytes.len().min(self.room);
        self.room -= count;
        let Ok(mut taken) = self.taken.lock() else { panic!("a reader panicked") };
        taken.extend(bytes.iter().take(count));
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

async fn write_all(writer: &mut ThreadWriter, flushes: bool) -> io::Result<()> {
    let mut left = TEXT;
    while !left.is_empty() {
        let count = poll_fn(|cx| Pin::new(&mut *writer).poll_write(cx, left)).await?;
        left = left.get(count..).unwrap_or_default();
    }
    if flushes { poll_fn(|cx| Pin::new(&mut *writer).poll_flush(cx)).await } else { Ok(()) }
}

/// How a writer ends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Last {
    Flush,
    Shutdown,
    Drop,
}

fn writing(room: usize, last: Last) {
    let (taken, is_gone) = (Arc::<Mutex<Vec<u8>>>::default(), Arc::<AtomicBool>::default());
    let target = Target { taken: Arc::clone(&taken), room, is_gone: Arc::clone(&is_gone) };
    let Ok(mut writer) = ThreadWriter::new(target) else { panic!("no thread") };
    let wrote = block_on(write_all(&mut writer, last == Last::Flush));
    let is_broken = room < TEXT.len();
    // A writer that does not wait may not have seen the error yet.
    assert!(is_broken || wrote.is_ok(), "I1: {wrote:?}");
    match last {
        Last::Flush => assert_eq!(wrote.is_err(), is_broken, "L3: {wrote:?}"),
        Last::Shutdown => {
            let shut = block_on(poll_fn(|cx| Pin::new(&mut writer).poll_shutdown(cx)));
            assert_eq!(shut.is_err(), is_broken, "L3: {shut:?}");
            assert!(is_broken || is_gone.load(Ordering::SeqCst), "L3: the pipe is open after the shutdown");
        }
        Last::Drop => {
            drop(writer);
            while !is_gone.load(Ordering::SeqCst) {
                tasks::yield_now();
            }
        }
    }
    let Ok(taken) = taken.lock() else { panic!("a writer panicked") };
    assert_eq!(&**taken, TEXT.get(..room).unwrap_or(TEXT), "I1: what was taken is written");
}

tests! {
    "L3";
    pipe_written_and_flushed: writing(usize::MAX, Last::Flush);
    pipe_written_and_shut_down: writing(usize::MAX, Last::Shutdown);
    pipe_written_and_dropped: writing(usize::MAX, Last::Drop);
    pipe_written_and_broken: writing(5, Last::Shutdown);
}
