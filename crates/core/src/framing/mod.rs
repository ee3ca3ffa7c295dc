//! Cutting bytes into frames, without I/O: bytes in, frames or [`BadFrame`] items out.

use bytes::Bytes;

/// Why some bytes are no frame. It is an item among frames, not an error: where the framing can find the next frame
/// the connection goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BadFrame {
    /// The frame is over the limit; it was dropped.
    #[error("the frame is larger than {limit} bytes")]
    TooLarge {
        /// The limit, in bytes.
        limit: usize,
    },
    /// A `Content-Length` header is missing, double, negative, too large or no number.
    #[error("the Content-Length header is missing or unusable")]
    BadLength,
    /// The header block is over 8 KiB or holds a line that is no header.
    #[error("the header block is unusable")]
    BadHeader,
    /// `Content-Type` names a charset other than UTF-8.
    #[error("the Content-Type names a charset other than utf-8")]
    BadCharset,
    /// The input ended inside a frame.
    #[error("the input ended inside a frame")]
    Truncated,
}

impl BadFrame {
    /// Whether the next frame can be found after this one in `Content-Length` framing. (`Newline` always can.)
    #[must_use]
    pub const fn is_recoverable(self) -> bool {
        match self {
            Self::TooLarge { .. } | Self::BadCharset => true,
            Self::BadLength | Self::BadHeader | Self::Truncated => false,
        }
    }
}

/// One step of a decoder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decoded {
    /// A frame, without its framing.
    Frame(Bytes),
    /// Bytes that are none.
    Bad(BadFrame),
}
