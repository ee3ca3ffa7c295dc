//! Frames over a byte stream: a line each (MCP, ACP), or after a `Content-Length` header (LSP).

use std::io::{self, BufRead, ErrorKind};

/// How frames are separated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Framing {
    Newline,
    ContentLength,
}

impl Framing {
    /// The next frame. `None`: the input has ended.
    pub(super) fn read(self, input: &mut impl BufRead) -> io::Result<Option<Vec<u8>>> {
        match self {
            Self::Newline => loop {
                let mut line = Vec::new();
                if input.read_until(b'\n', &mut line)? == 0 {
                    return Ok(None);
                }
                if !line.trim_ascii().is_empty() {
                    return Ok(Some(line));
                }
            },
            Self::ContentLength => read_after_headers(input),
        }
    }

    /// The bytes of a frame with this text.
    pub(super) fn frame(self, text: &str, other_framing: bool) -> Vec<u8> {
        match (self, other_framing) {
            (Self::Newline, false) => format!("{text}\n"),
            (Self::Newline, true) => format!("{text}\r\n"),
            (Self::ContentLength, false) => format!("Content-Length: {}\r\n\r\n{text}", text.len()),
            (Self::ContentLength, true) => format!(
                "Content-Type: application/vscode-jsonrpc; charset=utf-8\r\ncontent-length:{}\r\n\r\n{text}",
                text.len()
            ),
        }
        .into_bytes()
    }
}

fn read_after_headers(input: &mut impl BufRead) -> io::Result<Option<Vec<u8>>> {
    let mut length = None;
    let mut is_first = true;
    loop {
        let mut line = String::new();
        if input.read_line(&mut line)? == 0 {
            return if is_first { Ok(None) } else { Err(ErrorKind::UnexpectedEof.into()) };
        }
        is_first = false;
        let line = line.trim_end();
        if line.is_empty() {
            break;
        }
        if let Some((name, value)) = line.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            length = value.trim().parse::<usize>().ok();
        }
    }
    let Some(length) = length else {
        return Err(io::Error::new(ErrorKind::InvalidData, "a header without a Content-Length"));
    };
    let mut body = vec![0; length];
    input.read_exact(&mut body)?;
    Ok(Some(body))
}
