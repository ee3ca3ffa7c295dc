//! The dialects of a bridge: which can be passed on, and what a side that passes messages on does not do itself.

use rescind_core::ErrorCode;
use rescind_core::dialect::{CancelName, Dialect, FirstMessage, JsonRpc};

/// The reason why a bridge does not carry a dialect, or a pair of dialects.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NotBridged {
    /// The envelope of a request has more than its method and params, so the two do not carry all of it.
    #[error("a bridge does not carry {dialect}: options of its calls are part of its envelope")]
    Envelope {
        /// The dialect.
        dialect: &'static str,
    },
    /// The two dialects differ in more than the spelling of a cancel.
    #[error(
        "{from} and {to} differ in more than the spelling of a cancel, and a bridge does not translate the rest; \
         the pairs are acp and acp-draft"
    )]
    Pair {
        /// The dialect of the downstream side.
        from: &'static str,
        /// The dialect of the upstream side.
        to: &'static str,
    },
}

/// Errors that answer a cancelled request and pass unchanged.
const SAY_CANCELLED: &[ErrorCode] = &[ErrorCode::REQUEST_CANCELLED];
/// The same in a dialect in which a handler may send other errors after a cancel (LSP).
const SAY_WHY: &[ErrorCode] = &[
    ErrorCode::REQUEST_CANCELLED,
    ErrorCode::CONTENT_MODIFIED,
    ErrorCode::SERVER_CANCELLED,
    ErrorCode::REQUEST_FAILED,
];

/// The dialect as a bridge speaks it: the same messages, and nothing is added to them or taken from them.
///
/// - An error that says "cancelled" is kept as the error that it is, with its code and data.
/// - No member is added to a result.
/// - A notification that cancels by a progress token is passed on, and cancels nothing here.
/// - A call has no timeout of its own: the caller has one.
pub(crate) fn relayed(dialect: &Dialect) -> Result<Dialect, NotBridged> {
    let Some(codec) = dialect.codec().as_json_rpc() else {
        return Err(NotBridged::Envelope { dialect: dialect.name() });
    };
    let mut codec: JsonRpc = codec.clone();
    codec.cancelled_codes = &[];
    codec.result_mark = None;
    if let Some(progress) = &mut codec.progress {
        (progress.create, progress.cancel) = (None, None);
    }
    let relayed = dialect.to_builder().json_rpc(codec).rules(|rules| {
        let own = rules.errors_after_cancel;
        rules.errors_after_cancel = if own.is_empty() { SAY_CANCELLED } else { own };
        if own.iter().all(|code| SAY_WHY.contains(code)) && !own.is_empty() {
            rules.errors_after_cancel = SAY_WHY;
        }
        (rules.call_timeout, rules.max_call_timeout) = (None, None);
    });
    Ok(relayed.build())
}

/// Whether all messages of the one are messages of the other, apart from the spelling of a cancel: their handshakes have
/// the same number, and each reads the cancels of the other.
pub(crate) fn check_pair(from: &Dialect, to: &Dialect) -> Result<(), NotBridged> {
    let alike = match (from.codec().as_json_rpc(), to.codec().as_json_rpc()) {
        (Some(from), Some(to)) => {
            let same_version =
                matches!(from.opening, FirstMessage::NumberedVersion(_)) && from.opening == to.opening;
            same_version && reads(from, &to.cancel) && reads(to, &from.cancel)
        }
        _ => false,
    };
    if alike || from.name() == to.name() {
        return Ok(());
    }
    Err(NotBridged::Pair { from: from.name(), to: to.name() })
}

fn reads(codec: &JsonRpc, cancel: &CancelName) -> bool {
    codec.cancel == *cancel || codec.also_accepted.contains(cancel)
}

#[cfg(test)]
mod tests {
    use rescind_core::dialect::{ABP, ALL, LSP, MCP};

    use super::*;

    #[test]
    fn dialects_of_json_rpc_pass_and_abp_is_refused() {
        for dialect in &ALL {
            match relayed(dialect) {
                Ok(relayed) => assert_eq!(relayed.name(), dialect.name()),
                Err(refused) => {
                    assert_eq!((dialect.name(), refused), ("abp", NotBridged::Envelope { dialect: "abp" }));
                }
            }
        }
        assert!(relayed(&ABP).is_err());
    }

    #[test]
    fn only_dialects_that_spell_a_cancel_differently_are_a_pair() {
        for from in &ALL {
            for to in &ALL {
                let alike = from.name() == to.name()
                    || matches!((from.name(), to.name()), ("acp", "acp-draft") | ("acp-draft", "acp"));
                assert_eq!(check_pair(from, to).is_ok(), alike, "{from:?} and {to:?}");
            }
        }
        let refused = check_pair(&MCP, &LSP).unwrap_err().to_string();
        assert!(refused.starts_with("mcp and lsp differ"), "{refused}");
    }
}
