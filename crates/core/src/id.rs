//! Request ids as they are written on the wire, and the keys that identify requests inside this library.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// The longest text id, in bytes of UTF-8 after unescaping.
pub const MAX_ID_BYTES: usize = 256;

/// A request id exactly as its sender wrote it: a whole number or a text. The two are never converted into each other.
///
/// `1` and `"1"` are two ids. `1`, `1.0` and `1e0` are the same number in JSON, so they are the same id, and each is
/// written back as it came. Numbers are kept as `i64` and never pass through a float. Numbers that are not whole, `null`,
/// booleans, arrays and numbers outside of `i64` are not ids.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(Repr);

/// Two words, because tables hold many ids.
#[derive(Clone)]
enum Repr {
    Number(i64),
    /// A quote and then a text, without escapes; or a number that is not in plain digits, as it was written.
    Other(Arc<str>),
}

const _: () = assert!(size_of::<RequestId>() == 2 * size_of::<u64>());

impl Repr {
    fn text(&self) -> Option<&str> {
        match self {
            Self::Number(_) => None,
            Self::Other(value) => value.strip_prefix('"'),
        }
    }

    /// The number, or the text.
    fn key(&self) -> Result<i64, &str> {
        match self {
            Self::Number(value) => Ok(*value),
            Self::Other(value) => match value.strip_prefix('"') {
                Some(text) => Err(text),
                // It was read as a whole number before.
                None => Ok(whole_number(value).unwrap_or_default()),
            },
        }
    }
}

impl PartialEq for Repr {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Repr {}

impl PartialOrd for Repr {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Repr {
    fn cmp(&self, other: &Self) -> Ordering {
        self.key().cmp(&other.key())
    }
}

/// Each id is hashed in one call, because the id of every received frame is hashed several times.
impl Hash for Repr {
    fn hash<H: Hasher>(&self, state: &mut H) {
        match self.key() {
            Ok(value) => state.write_i64(value),
            Err(value) => state.write(value.as_bytes()),
        }
    }
}

/// Why a JSON value is not a request id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidId {
    /// Neither a whole number nor a text.
    #[error("a request id must be an integer or a string")]
    NotAnId,
    /// A whole number that does not fit into a signed 64-bit integer.
    #[error("a request id must fit into a signed 64-bit integer")]
    OutOfRange,
    /// A text longer than [`MAX_ID_BYTES`], or a number written with more digits.
    #[error("a request id must have at most {MAX_ID_BYTES} bytes")]
    TooLong,
}

impl RequestId {
    /// A numeric id.
    #[must_use]
    pub const fn number(value: i64) -> Self {
        Self(Repr::Number(value))
    }

    /// A text id.
    ///
    /// # Errors
    /// [`InvalidId::TooLong`] if it has more than [`MAX_ID_BYTES`] bytes.
    pub fn text(value: &str) -> Result<Self, InvalidId> {
        if value.len() > MAX_ID_BYTES {
            return Err(InvalidId::TooLong);
        }
        // On the stack, so that the id is the only allocation.
        let mut quoted = [b'"'; MAX_ID_BYTES + 1];
        let quoted = quoted.get_mut(..=value.len()).ok_or(InvalidId::TooLong)?;
        if let Some(text) = quoted.get_mut(1..) {
            text.copy_from_slice(value.as_bytes());
        }
        let quoted = std::str::from_utf8(quoted).map_err(|_| InvalidId::NotAnId)?;
        Ok(Self(Repr::Other(quoted.into())))
    }

    /// Reads one JSON token, such as `7` or `"7"`. A number does not pass through a float.
    ///
    /// # Errors
    /// The rule of [`RequestId`] that the token violates.
    pub fn from_json(token: &str) -> Result<Self, InvalidId> {
        let token = token.trim_ascii();
        if token.starts_with('"') {
            let value: std::borrow::Cow<'_, str> =
                serde_json::from_str::<Borrowed<'_>>(token).map_err(|_| InvalidId::NotAnId)?.0;
            return Self::text(&value);
        }
        let digits = token.strip_prefix('-').unwrap_or(token);
        let plain = !digits.is_empty()
            && digits.bytes().all(|byte| byte.is_ascii_digit())
            && (digits == "0" || !digits.starts_with('0'))
            && token != "-0";
        if plain {
            return token.parse().map(Self::number).map_err(|_| InvalidId::OutOfRange);
        }
        whole_number(token)?;
        Ok(Self(Repr::Other(token.into())))
    }

    /// The number, if this is a numeric id.
    #[must_use]
    pub fn as_number(&self) -> Option<i64> {
        self.0.key().ok()
    }

    /// The text, if this is a text id.
    #[must_use]
    pub fn as_text(&self) -> Option<&str> {
        self.0.text()
    }

    /// Appends the id as JSON.
    pub fn write_json(&self, out: &mut Vec<u8>) {
        match &self.0 {
            // A write into memory cannot fail.
            Repr::Number(value) => drop(serde_json::to_writer(out, value)),
            Repr::Other(value) => match value.strip_prefix('"') {
                Some(text) => drop(serde_json::to_writer(out, text)),
                None => out.extend_from_slice(value.as_bytes()),
            },
        }
    }
}

/// The value of a JSON number with a fraction or an exponent, if it is whole: `7.0`, `70e-1`, `-0`. It does not pass
/// through a float.
fn whole_number(token: &str) -> Result<i64, InvalidId> {
    if token.len() > MAX_ID_BYTES {
        return Err(InvalidId::TooLong);
    }
    serde_json::from_str::<serde::de::IgnoredAny>(token).map_err(|_| InvalidId::NotAnId)?;
    let (negative, rest) = token.strip_prefix('-').map_or((false, token), |rest| (true, rest));
    if !rest.starts_with(|first: char| first.is_ascii_digit()) {
        return Err(InvalidId::NotAnId);
    }
    let (mantissa, exponent) = rest.split_once(['e', 'E']).unwrap_or((rest, "0"));
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let digits = [whole, fraction].concat();
    let significant = digits.trim_end_matches('0');
    if significant.is_empty() {
        return Ok(0);
    }
    // The number is `significant` times ten to this power.
    let exponent: i64 = exponent.parse().map_err(|_| InvalidId::OutOfRange)?;
    let dropped = digits.len() - significant.len();
    let power =
        exponent.saturating_add_unsigned(dropped as u64).saturating_sub_unsigned(fraction.len() as u64);
    let power = u32::try_from(power)
        .map_err(|_| if power < 0 { InvalidId::NotAnId } else { InvalidId::OutOfRange })?;
    let value = significant.parse::<i128>().ok().zip(10_i128.checked_pow(power));
    let value = value.and_then(|(significant, scale)| significant.checked_mul(scale));
    let value = value.map(|value| if negative { -value } else { value });
    value.and_then(|value| i64::try_from(value).ok()).ok_or(InvalidId::OutOfRange)
}

#[derive(Deserialize)]
struct Borrowed<'a>(#[serde(borrow)] std::borrow::Cow<'a, str>);

impl From<i64> for RequestId {
    fn from(value: i64) -> Self {
        Self::number(value)
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Repr::Number(value) => write!(f, "{value}"),
            Repr::Other(value) => match value.strip_prefix('"') {
                Some(text) => write!(f, "{text:?}"),
                None => f.write_str(value),
            },
        }
    }
}

impl fmt::Debug for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for RequestId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0.key() {
            Ok(value) => serializer.serialize_i64(value),
            Err(text) => serializer.serialize_str(text),
        }
    }
}

impl<'de> Deserialize<'de> for RequestId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = Box::<serde_json::value::RawValue>::deserialize(deserializer)?;
        Self::from_json(raw.get()).map_err(de::Error::custom)
    }
}

/// The number of a call of this side. It counts up from 1 on each connection, and no number is used twice.
///
/// The codec of the dialect decides how it is written as an id on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CallNumber(pub u64);

/// A slot in a table, and how often the slot was used before. So an outdated key finds nothing (I14).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CallKey {
    /// The slot.
    pub slot: u32,
    /// The number of requests that used the slot before.
    pub generation: u32,
}

/// Identifies a request that this side serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct InboundKey(pub CallKey);

/// Identifies a call of this side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OutboundKey(pub CallKey);

/// The driver's key of a call. The handle of a call may use it long after the machine has forgotten the call.
#[cfg(feature = "tokio")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct SlotKey(pub(crate) CallKey);

/// One exchange of a transport that has exchanges (an HTTP request and its response). Byte streams use
/// [`ExchangeId::NONE`].
///
/// The driver numbers the exchanges that this side opens, and sets their highest bit. The transport numbers the
/// exchanges that the peer opens, from 1, and never sets that bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ExchangeId(pub u64);

impl ExchangeId {
    /// No exchange: the transport has none, or it chooses the exchange for the frame.
    pub const NONE: Self = Self(0);

    /// The exchange for what the peer sends outside of the calls of this side, where each call has an exchange of its own.
    /// No call has the number 0, so a message without an id ends none here.
    pub const OF_NO_CALL: Self = Self(Self::LOCAL_BIT);

    const LOCAL_BIT: u64 = 1 << 63;

    /// The exchange that this side opens with the message of this number.
    #[must_use]
    pub const fn of_call(number: CallNumber) -> Self {
        Self(Self::LOCAL_BIT | number.0)
    }

    /// The number of the message with which this side opened it. `None`: the peer opened it, or it is
    /// [`ExchangeId::NONE`].
    #[must_use]
    pub const fn call(self) -> Option<CallNumber> {
        if self.0 & Self::LOCAL_BIT == 0 { None } else { Some(CallNumber(self.0 & !Self::LOCAL_BIT)) }
    }

    /// Whether the peer opened it.
    #[must_use]
    pub const fn is_peers(self) -> bool {
        self.0 != Self::NONE.0 && self.0 & Self::LOCAL_BIT == 0
    }
}

/// The scope in which an id is unique.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scope {
    /// The whole session.
    Session,
    /// One exchange (stateless HTTP).
    Exchange(ExchangeId),
}

/// [`Scope::Session`] hashes to nothing: it is the usual scope, and all names of a connection share it.
impl Hash for Scope {
    fn hash<H: Hasher>(&self, state: &mut H) {
        match self {
            Self::Session => {}
            Self::Exchange(exchange) => state.write_u64(exchange.0),
        }
    }
}

/// One of the clients that share a connection (stateless HTTP).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientNumber(pub usize);

/// The sender of a message, as the auth hook named it. A cancel has an effect only on a request of the same principal
/// (I4).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Principal(pub Arc<str>);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_and_its_text_are_two_ids() {
        let number = RequestId::from_json("1").unwrap();
        let text = RequestId::from_json("\"1\"").unwrap();
        assert_ne!(number, text);
        assert_eq!(number.as_number(), Some(1));
        assert_eq!(text.as_text(), Some("1"));
    }

    #[test]
    fn large_neighbours_stay_apart() {
        let low = RequestId::from_json("9007199254740992").unwrap();
        let high = RequestId::from_json("9007199254740993").unwrap();
        assert_ne!(low, high);
        assert_eq!(RequestId::from_json("9223372036854775807").unwrap().as_number(), Some(i64::MAX));
        assert_eq!(RequestId::from_json("-9223372036854775808").unwrap().as_number(), Some(i64::MIN));
    }

    #[test]
    fn an_invalid_id_is_refused() {
        for token in [
            "1.5",
            "1e-1",
            "1.",
            "1e",
            "0x1",
            "Infinity",
            "NaN",
            "null",
            "true",
            "[1]",
            "{}",
            "",
            "01",
            "-",
            "\"\\ud800\"",
            "--1",
        ] {
            assert_eq!(RequestId::from_json(token), Err(InvalidId::NotAnId), "{token}");
        }
        assert_eq!(RequestId::from_json("9223372036854775808"), Err(InvalidId::OutOfRange));
        let long = format!("\"{}\"", "x".repeat(257));
        assert_eq!(RequestId::from_json(&long), Err(InvalidId::TooLong));
    }

    #[test]
    fn a_whole_number_is_one_id_however_it_is_spelled() {
        use std::hash::BuildHasher;
        let hasher = std::hash::RandomState::new();
        for (value, spellings) in [
            (7, ["7.0", "7e0", "70e-1", "0.7E+1", "7.000"].as_slice()),
            (-7, &["-7.0", "-0.07e2"]),
            (0, &["-0", "0.0", "0e999999999999999999999", "-0.0e-9"]),
            (1200, &["12e2", "0.0012e6", "1200.0"]),
            (i64::MAX, &["9223372036854775807.0", "9.223372036854775807e18"]),
            (i64::MIN, &["-9223372036854775808.0"]),
        ] {
            for spelling in spellings {
                let id = RequestId::from_json(spelling).unwrap();
                assert_eq!((&id, id.as_number()), (&RequestId::number(value), Some(value)), "{spelling}");
                assert_eq!(hasher.hash_one(&id), hasher.hash_one(RequestId::number(value)), "{spelling}");
                let mut out = Vec::new();
                id.write_json(&mut out);
                assert_eq!((&*out, &*id.to_string()), (spelling.as_bytes(), *spelling));
                assert_eq!(serde_json::to_string(&id).unwrap(), value.to_string());
            }
        }
        assert_ne!(RequestId::from_json("7.0"), RequestId::from_json("\"7.0\""));
        for large in ["9223372036854775808.0", "1e19", "1e99999999999999999999", "1e4000000000"] {
            assert_eq!(RequestId::from_json(large), Err(InvalidId::OutOfRange), "{large}");
        }
        let long = format!("7.{}", "0".repeat(MAX_ID_BYTES));
        assert_eq!(RequestId::from_json(&long), Err(InvalidId::TooLong));
    }

    #[test]
    fn a_text_id_is_written_as_it_was_meant() {
        for token in ["7", "-7", "\"a\\\"b\"", "\"\\u00e9\\n\""] {
            let id = RequestId::from_json(token).unwrap();
            let mut out = Vec::new();
            id.write_json(&mut out);
            assert_eq!(RequestId::from_json(std::str::from_utf8(&out).unwrap()).unwrap(), id);
        }
    }

    #[test]
    fn the_longest_text_is_an_id_and_one_byte_more_is_none() {
        assert!(RequestId::text(&"x".repeat(MAX_ID_BYTES)).is_ok());
        assert_eq!(RequestId::text(&"x".repeat(MAX_ID_BYTES + 1)), Err(InvalidId::TooLong));
    }

    #[test]
    fn an_id_is_shown_as_it_was_written() {
        let text = RequestId::text("a\"b").unwrap();
        assert_eq!((text.to_string(), format!("{text:?}")), (r#""a\"b""#.into(), r#""a\"b""#.into()));
        assert_eq!(RequestId::number(-7).to_string(), "-7");
    }

    #[test]
    fn ids_and_scopes_that_differ_are_hashed_apart() {
        use std::hash::BuildHasher;
        let hasher = std::hash::RandomState::new();
        let ids: Vec<_> = (0..64).map(|id| hasher.hash_one(RequestId::number(id))).collect();
        let scopes: Vec<_> =
            (0..64).map(|scope| hasher.hash_one(Scope::Exchange(ExchangeId(scope)))).collect();
        for mut hashes in [ids, scopes] {
            hashes.sort_unstable();
            hashes.dedup();
            assert_eq!(hashes.len(), 64);
        }
    }

    #[test]
    fn an_exchange_has_the_side_that_opened_it() {
        let ours = ExchangeId::of_call(CallNumber(5));
        assert_eq!((ours.call(), ours.is_peers()), (Some(CallNumber(5)), false));
        assert_ne!(ours, ExchangeId(5));
        assert_eq!((ExchangeId(5).call(), ExchangeId(5).is_peers()), (None, true));
        assert_eq!((ExchangeId::NONE.call(), ExchangeId::NONE.is_peers()), (None, false));
        assert_eq!(
            (ExchangeId::OF_NO_CALL.call(), ExchangeId::OF_NO_CALL.is_peers()),
            (Some(CallNumber(0)), false)
        );
    }
}
