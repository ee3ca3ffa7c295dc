//! One line for each frame, over pipes or a local socket.

use std::fmt;
use std::os::fd::OwnedFd;

use interprocess::local_socket::tokio::Stream;
use interprocess::local_socket::traits::tokio::{Listener as _, Stream as _};
use interprocess::local_socket::{GenericFilePath, ListenerOptions, ToFsName as _};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::pipe;

use bytes::Bytes;

use super::Answers;

/// Both directions of a connection.
pub struct Lines {
    reader: BufReader<Box<dyn AsyncRead + Send + Unpin>>,
    writer: Box<dyn AsyncWrite + Send + Unpin>,
    line: Vec<u8>,
}

impl fmt::Debug for Lines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Lines")
    }
}

impl Lines {
    fn new(
        reader: impl AsyncRead + Send + Unpin + 'static,
        writer: impl AsyncWrite + Send + Unpin + 'static,
    ) -> Self {
        let reader = BufReader::new(Box::new(reader) as Box<dyn AsyncRead + Send + Unpin>);
        Self { reader, writer: Box::new(writer), line: Vec::new() }
    }

    pub(super) async fn echo(&mut self, frame: &Bytes) -> usize {
        self.line.clear();
        self.line.extend_from_slice(frame);
        self.line.push(b'\n');
        self.writer.write_all(&self.line).await.expect("the wire is open");
        self.line.clear();
        self.reader.read_until(b'\n', &mut self.line).await.expect("the wire is open") - 1
    }

    /// The same, and returns the line.
    pub(super) async fn exchange(&mut self, frame: &Bytes) -> Bytes {
        self.echo(frame).await;
        self.line.pop();
        Bytes::from(std::mem::take(&mut self.line))
    }

    pub(super) async fn answer_all(mut self, answers: Answers) {
        loop {
            self.line.clear();
            let Ok(1..) = self.reader.read_until(b'\n', &mut self.line).await else { return };
            let written = match answers {
                Answers::Same => self.writer.write_all(&self.line).await,
                Answers::Envelope => {
                    self.line.pop();
                    let mut answer = Vec::from(answers.to(Bytes::from(std::mem::take(&mut self.line))));
                    answer.push(b'\n');
                    self.writer.write_all(&answer).await
                }
            };
            if written.is_err() {
                return;
            }
        }
    }
}

pub(super) fn of_pipes(input: OwnedFd, output: OwnedFd) -> Lines {
    let input = pipe::Receiver::from_owned_fd(input).expect("a pipe to read");
    let output = pipe::Sender::from_owned_fd(output).expect("a pipe to write");
    Lines::new(input, output)
}

fn of_stream(stream: Stream) -> Lines {
    let Stream::UdSocket(stream) = stream;
    let (reader, writer) = UnixStream::from(stream).into_split();
    Lines::new(reader, writer)
}

pub(super) async fn connect(endpoint: &str) -> Lines {
    let name = endpoint.to_fs_name::<GenericFilePath>().expect("a path");
    of_stream(Stream::connect(name).await.expect("the server listens"))
}

pub(super) async fn serve(answers: Answers, listens: fn(&str)) {
    let file = std::env::temp_dir().join(format!("rescind-raw-{}", std::process::id()));
    let name = file.as_path().to_fs_name::<GenericFilePath>().expect("a path");
    let listener = ListenerOptions::new().name(name).create_tokio().expect("a socket");
    listens(file.to_str().expect("a text"));
    while let Ok(stream) = listener.accept().await {
        tokio::spawn(of_stream(stream).answer_all(answers));
    }
}
