//! The limit on what is sent.

use rescind_core::{Outbound, TransportError, TransportErrorKind};

/// Whether a frame keeps to the limit, in bytes.
///
/// # Errors
/// It is larger; the error is of its exchange, and nothing was sent.
pub(crate) fn fits(out: &Outbound, limit: usize) -> Result<(), TransportError> {
    if out.body.len() <= limit {
        return Ok(());
    }
    let text = format!("the frame is larger than {limit} bytes and was not sent");
    let error = TransportError::new(TransportErrorKind::TooLarge, text);
    Err(TransportError { exchange: Some(out.exchange), ..error })
}
