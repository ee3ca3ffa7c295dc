//! What [`crate::verify`] shows of this binding.

use rescind_core::ACP_BODIES;

use super::message::Message;

/// Whether a body opens a connection, asks, answers; and the session its params name.
pub(crate) fn peek(body: &[u8]) -> Option<(bool, bool, bool, Option<String>)> {
    let message = Message::read(body, &ACP_BODIES).ok()?;
    let (_, _) = (message.made(), message.needs_session());
    let session = message.session().map(std::borrow::Cow::into_owned);
    Some((message.opens(), message.is_request(), message.is_answer(), session))
}
