//! A header with its length before each frame, over pipes.

use std::os::fd::OwnedFd;

use bytes::Bytes;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::unix::pipe;

use super::Answers;

/// Both directions of a connection.
#[derive(Debug)]
pub struct Headed {
    reader: BufReader<pipe::Receiver>,
    writer: pipe::Sender,
    header: String,
}

pub(super) fn of_pipes(input: OwnedFd, output: OwnedFd) -> Headed {
    let input = pipe::Receiver::from_owned_fd(input).expect("a pipe to read");
    let writer = pipe::Sender::from_owned_fd(output).expect("a pipe to write");
    Headed { reader: BufReader::new(input), writer, header: String::new() }
}

impl Headed {
    async fn write(&mut self, frame: &Bytes) -> std::io::Result<()> {
        let mut out = format!("Content-Length: {}\r\n\r\n", frame.len()).into_bytes();
        out.extend_from_slice(frame);
        self.writer.write_all(&out).await
    }

    /// The next frame. `None` at the end.
    async fn read(&mut self) -> Option<Bytes> {
        let mut length = 0;
        loop {
            self.header.clear();
            if self.reader.read_line(&mut self.header).await.ok()? == 0 {
                return None;
            }
            match self.header.trim().split_once(": ") {
                Some((_, value)) => length = value.parse().ok()?,
                None => break,
            }
        }
        let mut frame = vec![0; length];
        self.reader.read_exact(&mut frame).await.ok()?;
        Some(Bytes::from(frame))
    }

    pub(super) async fn exchange(&mut self, frame: &Bytes) -> Bytes {
        self.write(frame).await.expect("the wire is open");
        self.read().await.expect("the server answers")
    }

    pub(super) async fn answer_all(mut self, answers: Answers) {
        while let Some(frame) = self.read().await {
            if self.write(&answers.to(frame)).await.is_err() {
                return;
            }
        }
    }
}
