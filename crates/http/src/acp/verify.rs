//! The parts of this binding that [`crate::verify`] exports.

use rescind_core::ACP_BODIES;

use super::message::Message;

/// Whether a body opens a connection, is a request, is an answer; and the session that its params name.
pub(crate) fn peek(body: &[u8]) -> Option<(bool, bool, bool, Option<String>)> {
    let message = Message::read(body, &ACP_BODIES).ok()?;
    let (_, _) = (message.made(), message.needs_session());
    let session = message.session().map(std::borrow::Cow::into_owned);
    Some((message.opens(), message.is_request(), message.is_answer(), session))
}
