use std::sync::{Arc, OnceLock};

use crate::framing::Framing;

/// How frames stand in the bytes of a stream, for both of its halves: said once, by who made the stream, by who drives it, or by
/// the first byte that comes or goes.
#[derive(Clone, Debug, Default)]
pub(super) struct Framed(Arc<OnceLock<Framing>>);

impl Framed {
    #[cfg(feature = "tokio")]
    pub(super) fn said(&self) -> Option<Framing> {
        self.0.get().copied()
    }

    /// Changes nothing where it has been said.
    pub(super) fn say(&self, framing: Framing) {
        let _ = self.0.set(framing);
    }

    #[cfg(feature = "tokio")]
    /// For a frame of ours that goes out before anyone said: a line.
    pub(super) fn to_write(&self) -> Framing {
        *self.0.get_or_init(|| Framing::Newline)
    }

    #[cfg(feature = "tokio")]
    /// For bytes of the peer that come before anyone said: a `Content-Length` or `Content-Type` header begins with a letter no JSON
    /// text begins with.
    pub(super) fn to_read(&self, first: u8) -> Framing {
        *self.0.get_or_init(|| match first {
            b'C' | b'c' => Framing::ContentLength,
            _ => Framing::Newline,
        })
    }
}
