//! The size limit of sent frames.

use rescind_core::{Outbound, TransportError, TransportErrorKind};

/// Checks that a frame is within the limit, in bytes.
///
/// # Errors
/// The frame is larger. The error names its exchange; nothing was sent.
pub(crate) fn check_size(out: &Outbound, limit: usize) -> Result<(), TransportError> {
    if out.body.len() <= limit {
        return Ok(());
    }
    let text = format!("the frame is larger than {limit} bytes and was not sent");
    let error = TransportError::new(TransportErrorKind::TooLarge, text);
    Err(TransportError { exchange: Some(out.exchange), ..error })
}
