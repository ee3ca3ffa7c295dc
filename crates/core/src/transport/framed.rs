use std::sync::{Arc, OnceLock};

use crate::framing::Framing;

/// How frames are delimited in a stream, for both of its halves. It is decided once: by the code that makes the stream,
/// by the driver, or by the first byte that is read or written.
#[derive(Clone, Debug, Default)]
pub(super) struct Framed(Arc<OnceLock<Framing>>);

impl Framed {
    #[cfg(feature = "tokio")]
    pub(super) fn decided(&self) -> Option<Framing> {
        self.0.get().copied()
    }

    /// Decides the framing. It has no effect if the framing is decided already.
    pub(super) fn decide(&self, framing: Framing) {
        let _ = self.0.set(framing);
    }

    #[cfg(feature = "tokio")]
    /// The framing for a frame that this side writes. If it is not decided, frames are lines.
    pub(super) fn to_write(&self) -> Framing {
        *self.0.get_or_init(|| Framing::Newline)
    }

    #[cfg(feature = "tokio")]
    /// The framing for the first byte of the peer. If it is not decided, this byte decides: a `Content-Length` or
    /// `Content-Type` header begins with a letter with which no JSON text begins.
    pub(super) fn to_read(&self, first: u8) -> Framing {
        *self.0.get_or_init(|| match first {
            b'C' | b'c' => Framing::ContentLength,
            _ => Framing::Newline,
        })
    }
}
