//! What tests of several packages share: waits, tables, the limits and the size of a process, raw frames, HTTP/1.1.

use std::fs;
use std::io;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::task::JoinHandle;

/// Far more than any wait of a test needs.
pub const HANG: Duration = Duration::from_secs(30);

/// Waits at most [`HANG`].
///
/// # Panics
/// After that time, with `what`: the test hangs.
///
/// # Cancel safety
/// Dropping the future drops the one it waits for.
pub async fn in_time<T>(what: &str, wait: impl IntoFuture<Output = T>) -> T {
    within(HANG, what, wait).await
}

/// Waits at most this long.
///
/// # Panics
/// After that time, with `what`: the test hangs.
///
/// # Cancel safety
/// Dropping the future drops the one it waits for.
pub async fn within<T>(longest: Duration, what: &str, wait: impl IntoFuture<Output = T>) -> T {
    let since = tokio::time::Instant::now();
    let waited = tokio::time::timeout(longest, wait.into_future()).await;
    // A wait that is never woken is polled when its time ends, and may be ready then. So the elapsed time is checked
    // too.
    assert!(since.elapsed() < longest, "hangs: {what}");
    waited.unwrap_or_else(|_| panic!("hangs: {what}"))
}

/// Waits until the condition holds, at most this long. Other tasks run meanwhile.
///
/// # Panics
/// After that time, with `what`: the test hangs.
///
/// # Cancel safety
/// Dropping the future ends the wait.
pub async fn until(longest: Duration, what: &str, mut is_so: impl FnMut() -> bool) {
    let waiting = async {
        while !is_so() {
            tokio::task::yield_now().await;
        }
    };
    within(longest, what, waiting).await;
}

/// A task that is aborted when this is dropped.
#[derive(Debug)]
pub struct Serving(JoinHandle<()>);

impl Serving {
    /// Starts the task.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn spawn(task: impl Future<Output = ()> + Send + 'static) -> Self {
        Self(tokio::spawn(task))
    }

    /// Aborts the task and waits for its end.
    ///
    /// # Cancel safety
    /// The task is aborted although the future is dropped.
    pub async fn stop(mut self) {
        self.0.abort();
        let _cancelled = (&mut self.0).await;
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The `_meta` that each request of MCP 2026-07-28 carries.
#[must_use]
pub fn mcp_meta() -> Value {
    json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
    })
}

/// The rows of a table in a text. Two spaces or more separate its columns; empty lines and lines that begin with `#` are
/// not rows.
///
/// # Panics
/// If a row has another number of columns.
pub fn table<const COLUMNS: usize>(text: &str) -> impl Iterator<Item = [&str; COLUMNS]> {
    let rows = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    rows.map(|row| {
        let columns: Vec<_> = row.split("  ").map(str::trim).filter(|column| !column.is_empty()).collect();
        columns.try_into().unwrap_or_else(|_| panic!("{COLUMNS} columns are not in {row:?}"))
    })
}

/// Raises the limit of open files of this process to `many`, as far as the system permits. The usual limit is 1,024,
/// and a test of a thousand connections has two thousand ends. On systems other than Unix there is no such limit, and
/// the function does nothing.
///
/// # Errors
/// If `many` is above the hard limit of this user. The error contains that limit.
#[cfg(unix)]
pub fn allow_open_files(many: u64) -> io::Result<()> {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current.is_none_or(|allowed| allowed >= many) {
        return Ok(());
    }
    if let Some(most) = limit.maximum.filter(|most| *most < many) {
        return Err(io::Error::other(format!(
            "{many} open files are needed and this user may ask for {most}"
        )));
    }
    limit.current = Some(many);
    Ok(setrlimit(Resource::Nofile, limit)?)
}

/// Does nothing: this system has no limit of open files to raise.
///
/// # Errors
/// None.
#[cfg(not(unix))]
pub fn allow_open_files(_: u64) -> io::Result<()> {
    Ok(())
}

/// The path of a file about this process, or about a child process with this id.
fn proc_field(process: Option<u32>, what: &str) -> String {
    match process {
        None => format!("/proc/self/{what}"),
        Some(id) => format!("/proc/{id}/{what}"),
    }
}

/// Resident memory in bytes, of this process (`None`) or of the process with that id. Returns `None` if the system
/// does not report it as Linux does, or if there is no such process.
#[must_use]
pub fn resident_memory(process: Option<u32>) -> Option<u64> {
    let status = fs::read_to_string(proc_field(process, "status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kibibytes: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kibibytes * 1024)
}

/// The number of open descriptors of this process (`None`) or of the process with that id. Returns `None` as
/// [`resident_memory`] does.
#[must_use]
pub fn open_descriptors(process: Option<u32>) -> Option<u64> {
    Some(fs::read_dir(proc_field(process, "fd")).ok()?.count() as u64)
}

/// Frames at the end of a link that no peer drives.
pub mod frames {
    use std::future::poll_fn;

    use bytes::Bytes;
    use rescind_core::{
        ExchangeId, FrameInfo, FrameKind, Lane, Link, Outbound, TransportError, TransportEvent,
    };

    /// A notification without an exchange.
    pub fn note(lane: Lane, body: impl Into<Bytes>) -> Outbound {
        let head = FrameInfo { kind: FrameKind::Notification, id: None, method: None, trace: None };
        Outbound { body: body.into(), exchange: ExchangeId::NONE, lane, head, last: false }
    }

    /// Sends a note on the data lane, and flushes it.
    ///
    /// # Errors
    /// Those of the link.
    ///
    /// # Cancel safety
    /// The frame may have been sent if the future is dropped.
    pub async fn send(link: &mut Link, body: impl Into<Bytes>) -> Result<(), TransportError> {
        poll_fn(|cx| link.tx.as_mut().poll_ready(Lane::Data, cx)).await?;
        link.tx.as_mut().start_send(note(Lane::Data, body))?;
        poll_fn(|cx| link.tx.as_mut().poll_flush(cx)).await
    }

    /// The next event. `None` at the end.
    ///
    /// # Cancel safety
    /// No event is lost if the future is dropped.
    pub async fn event(link: &mut Link) -> Option<Result<TransportEvent, TransportError>> {
        poll_fn(|cx| link.rx.as_mut().poll_event(cx)).await
    }

    /// The body of the next message.
    ///
    /// # Panics
    /// If another event comes, or the end.
    ///
    /// # Cancel safety
    /// No event is lost if the future is dropped.
    pub async fn body(link: &mut Link) -> Bytes {
        match event(link).await {
            Some(Ok(TransportEvent::Message(inbound))) => inbound.body,
            other => panic!("expected a frame, got {other:?}"),
        }
    }
}

/// Requests and responses of HTTP/1.1, written and read by hand.
pub mod http1 {
    use std::fmt::Write as _;

    use serde_json::Value;
    use tokio::io::{AsyncRead, AsyncReadExt as _};

    use super::in_time;

    /// A request with these headers, with `Host` if it is not among them, and with the length of its body.
    #[must_use]
    pub fn request(method: &str, target: &str, host: &str, headers: &[(&str, &str)], body: &str) -> String {
        let mut text = format!("{method} {target} HTTP/1.1\r\n");
        if headers.iter().all(|(name, _)| *name != "Host") {
            let _ = write!(text, "Host: {host}\r\n");
        }
        for (name, value) in headers {
            let _ = write!(text, "{name}: {value}\r\n");
        }
        let _ = write!(text, "Content-Length: {}\r\n\r\n{body}", body.len());
        text
    }

    /// Reads the head of a response and no byte behind it. It is shorter if the connection ends.
    ///
    /// # Panics
    /// If it does not come in time.
    pub async fn read_head(stream: &mut (impl AsyncRead + Unpin)) -> String {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            match in_time("a head", stream.read_u8()).await {
                Ok(byte) => head.push(byte),
                Err(_) => break,
            }
        }
        String::from_utf8_lossy(&head).into_owned()
    }

    /// Reads until this text is there, and what comes with it.
    ///
    /// # Panics
    /// If the connection ends before, or the text does not come in time.
    pub async fn read_until(stream: &mut (impl AsyncRead + Unpin), wanted: &str) -> String {
        let mut text = String::new();
        let mut buffer = [0; 1024];
        while !text.contains(wanted) {
            let count = in_time(wanted, stream.read(&mut buffer)).await.unwrap_or(0);
            assert!(count > 0, "it ended before `{wanted}`: {text}");
            text.push_str(&String::from_utf8_lossy(buffer.get(..count).unwrap_or_default()));
        }
        text
    }

    /// A response.
    #[derive(Clone, Debug)]
    pub struct Response {
        /// Its status.
        pub status: u16,
        /// Its head, in lower case.
        pub head: String,
        /// Its body, as it was sent.
        pub body: String,
    }

    impl Response {
        /// The JSON object in its body, which may be the data of an event.
        ///
        /// # Panics
        /// If there is none.
        #[must_use]
        pub fn json(&self) -> Value {
            let ends = self.body.find('{').zip(self.body.rfind('}'));
            let json = ends.and_then(|(start, end)| serde_json::from_str(self.body.get(start..=end)?).ok());
            json.unwrap_or_else(|| panic!("no JSON: {}", self.body))
        }
    }

    /// Reads a response to the end of its connection.
    ///
    /// # Panics
    /// If it is no response, or does not end in time.
    pub async fn read_response(stream: &mut (impl AsyncRead + Unpin)) -> Response {
        let head = read_head(stream).await.to_ascii_lowercase();
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
        let status = status.unwrap_or_else(|| panic!("no response: {head}"));
        let mut body = String::new();
        let read = in_time("the response", stream.read_to_string(&mut body)).await;
        assert!(read.is_ok(), "{read:?} after {body}");
        Response { status, head, body }
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn the_stats_of_this_process_are_the_same_by_its_id() {
        let held = resident_memory(None).unwrap();
        let by_id = resident_memory(Some(std::process::id())).unwrap();
        assert!(held > 0 && by_id.abs_diff(held) < 64 << 20, "{held} and {by_id} bytes");
        assert!(open_descriptors(Some(std::process::id())).unwrap() > 0);
    }

    #[test]
    fn a_missing_process_has_no_stats() {
        assert_eq!(resident_memory(Some(u32::MAX)), None);
        assert_eq!(open_descriptors(Some(u32::MAX)), None);
    }
}
