//! Encodes the events of an event stream.

use std::fmt::Write as _;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use http::HeaderMap;

use super::refusal::Refused;
use crate::headers::LAST_EVENT_ID;

/// One event with one line of data. It has an id if a cut stream may be resumed after it.
pub(crate) fn event(id: Option<(u64, u64)>, data: &[u8]) -> Bytes {
    let mut out = BytesMut::with_capacity(data.len() + 48);
    put_id(&mut out, id);
    out.put_slice(b"data: ");
    out.put_slice(data);
    out.put_slice(b"\n\n");
    out.freeze()
}

/// An event without data. It gives the client an id for resuming the stream, and the time to wait before that.
pub(crate) fn priming(id: (u64, u64), retry: Option<Duration>) -> Bytes {
    let mut out = BytesMut::with_capacity(64);
    put_id(&mut out, Some(id));
    if let Some(retry) = retry {
        let _ = writeln!(out, "retry: {}", retry.as_millis());
    }
    out.put_slice(b"data: \n\n");
    out.freeze()
}

/// Only an id. A client remembers it and gets no event, because there is no line of data (WHATWG HTML, 9.2.6).
pub(crate) fn id_only(id: (u64, u64)) -> Bytes {
    let mut out = BytesMut::with_capacity(48);
    put_id(&mut out, Some(id));
    out.put_slice(b"\n");
    out.freeze()
}

fn put_id(out: &mut BytesMut, id: Option<(u64, u64)>) {
    if let Some((stream, number)) = id {
        let _ = writeln!(out, "id: {stream}-{number}");
    }
}

/// The stream and the number that an id names. The id must have exactly the form that we write.
pub(crate) fn parse_id(id: &str) -> Option<(u64, u64)> {
    let number = |digits: &str| digits.parse::<u64>().ok().filter(|number| number.to_string() == digits);
    let (stream, place) = id.split_once('-')?;
    Some((number(stream)?, number(place)?))
}

/// The event after which a client resumes a stream, if it names one: the stream and the number of the event.
pub(crate) fn last_event(headers: &HeaderMap) -> Result<Option<(u64, u64)>, Refused> {
    let Some(last) = headers.get(LAST_EVENT_ID) else { return Ok(None) };
    let last = last.to_str().ok().and_then(parse_id);
    last.map(Some).ok_or_else(Refused::foreign_event)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_issued_id_names_an_event() {
        assert_eq!(parse_id("1-20"), Some((1, 20)));
        for id in
            ["+1-2", "1-+2", "01-2", "1-02", "1-", "-2", "1-2-3", "1", "", "1- 2", "18446744073709551616-1"]
        {
            assert_eq!(parse_id(id), None, "{id}");
        }
    }
}
