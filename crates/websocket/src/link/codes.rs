//! Converts close codes and errors of tungstenite.

use rescind_core::{BadFrame, CloseReason, TransportError, TransportErrorKind};
use tokio_tungstenite::tungstenite::error::ProtocolError;
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::{Error, Utf8Bytes};

/// A control frame has at most 125 bytes. Two of them are the code.
const MAX_REASON: usize = 123;

/// The close frame with the reason why this side closes.
pub(super) fn frame_of(why: &CloseReason) -> CloseFrame {
    match why {
        CloseReason::Shutdown => frame(CloseCode::Away, "shutting down"),
        CloseReason::Violation(text) => frame(CloseCode::Policy, text),
        // `CloseReason` may get more variants. None of them will be a violation.
        _ => frame(CloseCode::Normal, ""),
    }
}

/// The close frame when the credential of the client has expired.
pub(super) fn frame_of_expiry() -> CloseFrame {
    frame(CloseCode::Policy, "the credentials have expired")
}

/// The close frame after a message that ends reading.
pub(super) fn frame_after(why: BadFrame) -> CloseFrame {
    let code = match why {
        BadFrame::TooLarge { .. } => CloseCode::Size,
        BadFrame::Binary => CloseCode::Unsupported,
        BadFrame::NotUtf8 => CloseCode::Invalid,
        BadFrame::MemoryFull => CloseCode::Again,
        _ => CloseCode::Protocol,
    };
    frame(code, &why.to_string())
}

fn frame(code: CloseCode, text: &str) -> CloseFrame {
    let mut end = text.len().min(MAX_REASON);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    CloseFrame { code, reason: Utf8Bytes::from(text.get(..end).unwrap_or_default()) }
}

/// Why the peer closed. Without a close frame, and after a normal one, it is `Normal`.
pub(super) fn reason_of(frame: Option<&CloseFrame>) -> CloseReason {
    let Some(frame) = frame else { return CloseReason::Normal };
    match frame.code {
        CloseCode::Normal | CloseCode::Status => CloseReason::Normal,
        CloseCode::Away | CloseCode::Restart => CloseReason::Shutdown,
        code => {
            let reason = frame.reason.as_str().escape_debug();
            CloseReason::Violation(format!("the peer closed with code {}: {reason}", u16::from(code)))
        }
    }
}

/// The message that ended reading, if the error is about one.
pub(super) fn bad_frame_of(error: &Error, limit: usize) -> Option<BadFrame> {
    match error {
        Error::Io(io) if io.kind() == std::io::ErrorKind::OutOfMemory => Some(BadFrame::MemoryFull),
        Error::Capacity(_) => Some(BadFrame::TooLarge { limit }),
        Error::Utf8(_) => Some(BadFrame::NotUtf8),
        Error::Protocol(ProtocolError::ResetWithoutClosingHandshake) => None,
        Error::Protocol(_) => Some(BadFrame::Broken),
        _ => None,
    }
}

/// Converts an error of the stream into an error of the transport.
pub(super) fn error_of(error: &Error) -> TransportError {
    match error {
        Error::Io(io) => {
            TransportError::new(TransportErrorKind::Io, std::io::Error::new(io.kind(), io.to_string()))
        }
        Error::Protocol(ProtocolError::ResetWithoutClosingHandshake) => {
            TransportError::new(TransportErrorKind::Closed, "the peer went away without closing")
        }
        Error::ConnectionClosed | Error::AlreadyClosed | Error::Protocol(ProtocolError::SendAfterClosing) => {
            TransportError::new(TransportErrorKind::Closed, "it was closed")
        }
        Error::Protocol(_) | Error::Utf8(_) | Error::Capacity(_) => {
            TransportError::new(TransportErrorKind::Framing, error.to_string())
        }
        _ => TransportError::new(TransportErrorKind::Io, error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_reason_is_cut_between_characters() {
        let text = "é".repeat(100);
        let frame = frame_of(&CloseReason::Violation(text));
        assert_eq!(frame.reason.len(), 122);
        assert_eq!(frame.code, CloseCode::Policy);
    }

    #[test]
    fn each_bad_frame_has_its_close_code() {
        let codes = [
            (BadFrame::TooLarge { limit: 1 }, 1009),
            (BadFrame::Binary, 1003),
            (BadFrame::NotUtf8, 1007),
            (BadFrame::Broken, 1002),
            (BadFrame::MemoryFull, 1013),
        ];
        for (why, code) in codes {
            assert_eq!(u16::from(frame_after(why).code), code, "{why}");
        }
    }

    #[test]
    fn only_a_regular_close_is_not_a_violation() {
        let reason = |code: u16| {
            reason_of(Some(&CloseFrame { code: code.into(), reason: Utf8Bytes::from("a\nb\u{202e}") }))
        };
        assert_eq!(reason(1000), CloseReason::Normal);
        assert_eq!(reason(1005), CloseReason::Normal);
        assert_eq!(reason(1001), CloseReason::Shutdown);
        assert_eq!(reason(1012), CloseReason::Shutdown);
        let reported = CloseReason::Violation("the peer closed with code 1008: a\\nb\\u{202e}".to_owned());
        assert_eq!(reason(1008), reported);
        assert_eq!(reason_of(None), CloseReason::Normal);
    }
}
