use std::pin::Pin;
use std::process::ExitStatus;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use rescind_core::{
    BadFrame, CloseReason, Lane, Link, LogText, Outbound, Receiver, Sender, TransportError,
    TransportErrorKind, TransportEvent,
};

use super::{DesiredState, Half, Process};

/// The most bytes of bad input that an error shows.
const MAX_EXCERPT: usize = 200;

/// The link to a child. It wraps the link over the child's pipes and reports how the child ended.
/// `output` is the child's stdout, of which `pipes` reads.
pub(crate) fn child_link(pipes: Link, output: Output, process: &Arc<Process>) -> Link {
    let guard = Arc::new(Guard(Arc::clone(process)));
    let output = Arc::new(output);
    pipes.wrap(|rx, tx| {
        let receiver = ChildReceiver {
            pipe: rx,
            output: Arc::clone(&output),
            process: Arc::clone(process),
            served: false,
            torn: None,
            state: ReceiverState::Open,
            _guard: Arc::clone(&guard),
        };
        let sender = ChildSender {
            pipe: tx,
            output,
            process: Arc::clone(process),
            closing: false,
            breaking: None,
            _guard: guard,
        };
        (receiver, sender)
    })
}

/// Exists while either half does. A connection that is dropped before it was closed kills the child.
struct Guard(Arc<Process>);

impl Drop for Guard {
    fn drop(&mut self) {
        if self.0.desired_state() == DesiredState::Run {
            self.0.kill();
        }
    }
}

struct ChildReceiver {
    pipe: Pin<Box<dyn Receiver>>,
    output: Arc<Output>,
    process: Arc<Process>,
    /// The child sent a frame.
    served: bool,
    /// The child wrote bytes after which no frame can be found: why they are none, and their beginning.
    torn: Option<String>,
    state: ReceiverState,
    _guard: Arc<Guard>,
}

#[derive(Clone, Copy, Debug)]
enum ReceiverState {
    Open,
    /// Its output has ended. It may be about to exit.
    Settling,
    HalfClosed,
    /// Both pipes have ended, because a write to the child failed before the end of its output was read. The error must
    /// still report how the child ended.
    Over,
    Closed,
}

impl ChildReceiver {
    /// The last event, after the child has exited.
    fn exited(&mut self, status: ExitStatus) -> Option<Result<TransportEvent, TransportError>> {
        self.state = ReceiverState::Closed;
        let in_order = self.process.desired_state() > DesiredState::Run || (status.success() && self.served);
        let what = if self.served {
            "it exited while the connection was open"
        } else {
            "it exited without having sent a message"
        };
        (!in_order).then(|| Err(self.process.error(TransportErrorKind::Closed, what)))
    }
}

impl ChildReceiver {
    /// The next event of the pipe. After the child's exit the pipe also ends when it is empty and another process holds its
    /// other end: one that is being started, or a descendant that left the child's group.
    fn poll_pipe(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<TransportEvent, TransportError>>> {
        if let Poll::Ready(event) = self.pipe.as_mut().poll_event(cx) {
            return Poll::Ready(event);
        }
        ready!(self.process.poll_exit_for(Half::Receiver, cx));
        // What the pipe still has, or its end, wakes this task.
        if self.output.is_empty_and_open() {
            Poll::Ready(Some(Ok(TransportEvent::HalfClosed)))
        } else {
            Poll::Pending
        }
    }
}

impl Receiver for ChildReceiver {
    fn poll_event(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<TransportEvent, TransportError>>> {
        let event = self.poll_next(cx);
        self.process.set_unread(event.is_ready() && matches!(self.state, ReceiverState::Open));
        event
    }
}

/// Why input is not a frame, and at most 200 bytes of it.
fn refused(why: BadFrame, head: &[u8]) -> String {
    let start = head.get(..MAX_EXCERPT).unwrap_or(head);
    match start {
        [] => why.to_string(),
        start => format!("{why}: {}", LogText::text(&String::from_utf8_lossy(start))),
    }
}

impl Drop for ChildReceiver {
    fn drop(&mut self) {
        self.process.set_unread(false);
    }
}

impl ChildReceiver {
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<TransportEvent, TransportError>>> {
        loop {
            match self.state {
                ReceiverState::Open => match ready!(self.poll_pipe(cx)) {
                    // Its output is still open, but nothing can be read from it any more.
                    Some(Ok(TransportEvent::HalfClosed))
                        if self.torn.is_some() && self.process.desired_state() == DesiredState::Run =>
                    {
                        self.state = ReceiverState::Closed;
                        let why = self.torn.take().unwrap_or_default();
                        let what = format!("it wrote something that is not a frame to its stdout: {why}");
                        let error = self.process.error(TransportErrorKind::Framing, &what);
                        return Poll::Ready(Some(Err(error)));
                    }
                    Some(Ok(TransportEvent::HalfClosed)) => self.state = ReceiverState::Settling,
                    Some(Ok(event)) => {
                        if let TransportEvent::Rejected { why, head, .. } = &event {
                            let is_torn = !matches!(why, BadFrame::Truncated) && !why.is_recoverable();
                            self.torn = is_torn.then(|| refused(*why, head));
                        }
                        self.served |= matches!(event, TransportEvent::Message(_));
                        return Poll::Ready(Some(Ok(event)));
                    }
                    Some(Err(error)) => {
                        self.state = ReceiverState::Closed;
                        return Poll::Ready(Some(Err(self.process.error(error.kind, &error.to_string()))));
                    }
                    None => self.state = ReceiverState::Over,
                },
                ReceiverState::Settling => {
                    if let Some(status) = ready!(self.process.poll_settled(cx)) {
                        return Poll::Ready(self.exited(status));
                    }
                    self.state = ReceiverState::HalfClosed;
                    if self.process.desired_state() == DesiredState::Run {
                        self.process.note_closed_stdout();
                        return Poll::Ready(Some(Ok(TransportEvent::HalfClosed)));
                    }
                }
                ReceiverState::HalfClosed => {
                    if let Poll::Ready(status) = self.process.poll_exit(cx) {
                        return Poll::Ready(self.exited(status));
                    }
                    ready!(self.pipe.as_mut().poll_event(cx));
                    self.state = ReceiverState::Closed;
                }
                ReceiverState::Over => {
                    if let Some(status) = ready!(self.process.poll_settled(cx)) {
                        return Poll::Ready(self.exited(status));
                    }
                    self.state = ReceiverState::Closed;
                }
                ReceiverState::Closed => return Poll::Ready(None),
            }
        }
    }
}

/// The child's stdout, beside the pipe that reads it.
pub(crate) struct Output {
    /// A descriptor of the same pipe.
    #[cfg(unix)]
    descriptor: std::os::fd::OwnedFd,
    /// The thread that reads it.
    #[cfg(windows)]
    reading: crate::threads::Reading,
}

#[cfg(unix)]
impl Output {
    pub(crate) fn of(child: &std::process::Child) -> std::io::Result<Self> {
        use std::os::fd::AsFd;
        let stdout = child.stdout.as_ref().ok_or(std::io::ErrorKind::BrokenPipe)?;
        Ok(Self { descriptor: stdout.as_fd().try_clone_to_owned()? })
    }

    /// Whether nothing can be read and a process holds the other end. If the system does not tell, no.
    fn is_empty_and_open(&self) -> bool {
        self.readiness().is_some_and(|ready| ready.is_empty())
    }

    /// Whether something can be read. If the system does not tell, no.
    fn has_more(&self) -> bool {
        self.readiness().is_some_and(|ready| ready.contains(rustix::event::PollFlags::IN))
    }

    fn readiness(&self) -> Option<rustix::event::PollFlags> {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let mut watched = [PollFd::new(&self.descriptor, PollFlags::IN)];
        poll(&mut watched, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).ok()?;
        let [watched] = watched;
        Some(watched.revents())
    }
}

#[cfg(windows)]
impl Output {
    pub(crate) fn of(reader: &crate::threads::ThreadReader) -> Self {
        Self { reading: reader.reading() }
    }

    /// No: whatever holds the other end is in the child's job, which ends with the child. So the pipe itself ends.
    #[expect(clippy::unused_self, reason = "on Unix it asks the system")]
    fn is_empty_and_open(&self) -> bool {
        false
    }

    /// Whether something can be read, or the thread that reads has not seen the end.
    fn has_more(&self) -> bool {
        self.reading.has_more()
    }
}

struct ChildSender {
    pipe: Pin<Box<dyn Sender>>,
    output: Arc<Output>,
    process: Arc<Process>,
    /// The connection is closing. From now on the child has its grace.
    closing: bool,
    /// The pipe broke. The error waits for the child's exit, so that it includes the exit.
    breaking: Option<TransportErrorKind>,
    _guard: Arc<Guard>,
}

impl ChildSender {
    fn poll_pipe(
        &mut self,
        cx: &mut Context<'_>,
        poll: impl FnOnce(Pin<&mut (dyn Sender + 'static)>, &mut Context<'_>) -> Poll<Result<(), TransportError>>,
    ) -> Poll<Result<(), TransportError>> {
        if self.has_unread_output() {
            return Poll::Ready(Ok(()));
        }
        if self.breaking.is_none() {
            // A child may read a frame and exit before the write returns here.
            let had_exited = self.process.exit_status().is_some();
            let kind = match poll(self.pipe.as_mut(), cx) {
                Poll::Ready(Err(error)) if error.exchange.is_some() => return Poll::Ready(Err(error)),
                Poll::Ready(Err(error)) => error.kind,
                // A pipe also accepts what nobody will read: another process may hold its other end, for example one that
                // is being started. The child's exit decides.
                Poll::Ready(Ok(())) if self.closing || !had_exited => return Poll::Ready(Ok(())),
                Poll::Ready(Ok(())) => TransportErrorKind::Closed,
                Poll::Pending => {
                    ready!(self.process.poll_exit_for(Half::Sender, cx));
                    TransportErrorKind::Closed
                }
            };
            self.breaking = Some(kind);
        }
        let exit = ready!(self.process.poll_settled(cx));
        if self.has_unread_output() {
            return Poll::Ready(Ok(()));
        }
        if exit.is_none() && self.process.desired_state() == DesiredState::Run {
            self.process.note_closed_stdin();
        }
        Poll::Ready(Err(self.broken()))
    }

    /// Whether the child has exited and the other half may not have returned all that it wrote before. The error of a write
    /// ends the connection, and an answer may be there. So until then what is written is dropped, and the other half reports
    /// the exit.
    fn has_unread_output(&self) -> bool {
        !self.closing
            && self.process.exit_status().is_some()
            && (self.process.has_unread() || self.output.has_more())
    }

    fn broken(&self) -> TransportError {
        let kind = self.breaking.unwrap_or(TransportErrorKind::Closed);
        self.process.error(kind, "it does not read its stdin any more")
    }
}

impl Sender for ChildSender {
    fn poll_ready(
        mut self: Pin<&mut Self>,
        lane: Lane,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), TransportError>> {
        self.poll_pipe(cx, |pipe, cx| pipe.poll_ready(lane, cx))
    }

    fn start_send(mut self: Pin<&mut Self>, out: Outbound) -> Result<(), TransportError> {
        if self.process.exit_status().is_some() {
            // Nobody reads it. The next poll says so.
            return Ok(());
        }
        if self.breaking.is_some() {
            return Err(self.broken());
        }
        self.pipe.as_mut().start_send(out)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), TransportError>> {
        self.poll_pipe(cx, Sender::poll_flush)
    }

    /// Ends the child's input, then waits for its exit, for at most two steps of grace.
    fn poll_close(
        mut self: Pin<&mut Self>,
        why: &CloseReason,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), TransportError>> {
        self.closing = true;
        // Set before the pipe is closed: a quick child exits before this side knows that the pipe is closed.
        self.process.request_state(DesiredState::Close);
        let closed = ready!(self.poll_pipe(cx, |pipe, cx| pipe.poll_close(why, cx)));
        self.process.request_state(DesiredState::End);
        ready!(self.process.poll_exit(cx));
        Poll::Ready(closed)
    }
}

impl Drop for ChildSender {
    fn drop(&mut self) {
        if self.closing {
            self.process.request_state(DesiredState::End);
        }
    }
}

#[cfg(all(test, unix))]
#[expect(clippy::unwrap_used, reason = "a pipe can be made")]
mod tests {
    use std::future::poll_fn;
    use std::os::unix::process::ExitStatusExt;
    use std::time::Duration;

    use rescind_core::{Capabilities, PeerInfo};

    use super::*;
    use crate::child::supervisor::WakeSender;

    /// The child exits while its pipe is being closed, before the close is done.
    struct QuickChild(Arc<Process>);

    impl Sender for QuickChild {
        fn poll_ready(
            self: Pin<&mut Self>,
            _: Lane,
            _: &mut Context<'_>,
        ) -> Poll<Result<(), TransportError>> {
            Poll::Ready(Ok(()))
        }

        fn start_send(self: Pin<&mut Self>, _: Outbound) -> Result<(), TransportError> {
            Ok(())
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), TransportError>> {
            Poll::Ready(Ok(()))
        }

        fn poll_close(
            self: Pin<&mut Self>,
            _: &CloseReason,
            _: &mut Context<'_>,
        ) -> Poll<Result<(), TransportError>> {
            self.0.reap(|| ExitStatus::from_raw(3 << 8));
            Poll::Ready(Ok(()))
        }
    }

    /// Both pipes have ended: the other half noticed it first.
    struct BothOver;

    impl Receiver for BothOver {
        fn poll_event(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<TransportEvent, TransportError>>> {
            Poll::Ready(None)
        }
    }

    /// The child's output ended long ago.
    struct NoOutput;

    impl Receiver for NoOutput {
        fn poll_event(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<TransportEvent, TransportError>>> {
            Poll::Ready(Some(Ok(TransportEvent::HalfClosed)))
        }
    }

    #[tokio::test]
    async fn a_child_that_exits_before_its_input_is_closed_ends_without_error() {
        let (wake_sender, _wake_receiver) = WakeSender::new().unwrap();
        let process = Arc::new(Process::new("quick".to_owned(), 0, Duration::ZERO, wake_sender));
        let mut link = link(NoOutput, &process);
        poll_fn(|cx| link.tx.as_mut().poll_close(&CloseReason::Normal, cx)).await.unwrap();
        let event = poll_fn(|cx| link.rx.as_mut().poll_event(cx)).await;
        assert!(event.is_none(), "{event:?}");
    }

    #[tokio::test]
    async fn a_child_killed_during_a_write_ends_with_an_error() {
        let (wake_sender, _wake_receiver) = WakeSender::new().unwrap();
        let process = Arc::new(Process::new("killed".to_owned(), 0, Duration::ZERO, wake_sender));
        let mut link = link(BothOver, &process);
        let early = std::future::poll_fn(|cx| Poll::Ready(link.rx.as_mut().poll_event(cx))).await;
        assert!(early.is_pending(), "its exit is not known yet: {early:?}");
        process.reap(|| ExitStatus::from_raw(9));
        let event = poll_fn(|cx| link.rx.as_mut().poll_event(cx)).await;
        assert!(matches!(event, Some(Err(_))), "{event:?}");
    }

    fn link(output: impl Receiver + 'static, process: &Arc<Process>) -> Link {
        let traits = Capabilities::of_stream(1024);
        let pipes = Link::new(output, QuickChild(Arc::clone(process)), traits, PeerInfo::default());
        let (reader, _writer) = rustix::pipe::pipe().unwrap();
        child_link(pipes, Output { descriptor: reader }, process)
    }
}
