//! The fields of a request's head that this crate reads, found in one pass: to look each of them up would hash a dozen
//! names.

use http::{HeaderMap, HeaderName, HeaderValue};
use rescind_core::TraceContext;

use super::refusal::Refused;

/// A field that is read if it occurs once.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) enum Field<'a> {
    #[default]
    Absent,
    Once(&'a HeaderValue),
    /// It occurs more than once. The first value.
    Several(&'a HeaderValue),
}

/// The fields of one head.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeadFields<'a> {
    pub(crate) headers: &'a HeaderMap,
    /// The bytes of all names and values.
    pub(crate) bytes: usize,
    pub(crate) host: Field<'a>,
    pub(crate) origin: Field<'a>,
    pub(crate) accept: Field<'a>,
    pub(crate) content_type: Field<'a>,
    pub(crate) content_encoding: Field<'a>,
    pub(crate) content_length: Field<'a>,
    pub(crate) transfer_encoding: Field<'a>,
    pub(crate) traceparent: Field<'a>,
    pub(crate) mcp_version: Field<'a>,
    pub(crate) mcp_session: Field<'a>,
    pub(crate) mcp_method: Field<'a>,
    pub(crate) mcp_name: Field<'a>,
    pub(crate) acp_connection: Field<'a>,
    pub(crate) acp_session: Field<'a>,
}

impl<'a> Field<'a> {
    /// The field of one name that is not among those of [`HeadFields`].
    pub(crate) fn named(headers: &'a HeaderMap, name: &HeaderName) -> Self {
        let mut field = Self::Absent;
        headers.get_all(name).iter().for_each(|value| field.add(value));
        field
    }

    fn add(&mut self, value: &'a HeaderValue) {
        *self = match *self {
            Self::Absent => Self::Once(value),
            Self::Once(first) | Self::Several(first) => Self::Several(first),
        };
    }

    pub(crate) const fn is_absent(self) -> bool {
        matches!(self, Self::Absent)
    }

    pub(crate) const fn first(self) -> Option<&'a HeaderValue> {
        match self {
            Self::Absent => None,
            Self::Once(value) | Self::Several(value) => Some(value),
        }
    }

    /// The text of a field that may occur only once.
    pub(crate) fn single(self, name: &str) -> Result<Option<&'a str>, Refused> {
        let text = match self {
            Self::Absent => return Ok(None),
            Self::Once(value) => value.to_str().ok(),
            Self::Several(_) => None,
        };
        text.map(Some).ok_or_else(|| Refused::bad(format!("the header {name} is unreadable")))
    }
}

impl<'a> HeadFields<'a> {
    pub(crate) fn of(headers: &'a HeaderMap) -> Self {
        let absent = Field::Absent;
        let mut fields = Self {
            headers,
            bytes: 0,
            host: absent,
            origin: absent,
            accept: absent,
            content_type: absent,
            content_encoding: absent,
            content_length: absent,
            transfer_encoding: absent,
            traceparent: absent,
            mcp_version: absent,
            mcp_session: absent,
            mcp_method: absent,
            mcp_name: absent,
            acp_connection: absent,
            acp_session: absent,
        };
        for (name, value) in headers {
            let name = name.as_str();
            fields.bytes += name.len() + value.len();
            // The names of `crate::headers`, as a `HeaderName` spells them. A test compares them.
            let field = match name {
                "host" => &mut fields.host,
                "origin" => &mut fields.origin,
                "accept" => &mut fields.accept,
                "content-type" => &mut fields.content_type,
                "content-encoding" => &mut fields.content_encoding,
                "content-length" => &mut fields.content_length,
                "transfer-encoding" => &mut fields.transfer_encoding,
                "traceparent" => &mut fields.traceparent,
                "mcp-protocol-version" => &mut fields.mcp_version,
                "mcp-session-id" => &mut fields.mcp_session,
                "mcp-method" => &mut fields.mcp_method,
                "mcp-name" => &mut fields.mcp_name,
                "acp-connection-id" => &mut fields.acp_connection,
                "acp-session-id" => &mut fields.acp_session,
                _ => continue,
            };
            field.add(value);
        }
        fields
    }

    /// The announced length of the body in bytes, if it is a number.
    pub(crate) fn length(&self) -> Option<u64> {
        self.content_length.first()?.to_str().ok()?.parse().ok()
    }

    pub(crate) fn trace(&self) -> Option<TraceContext> {
        if self.traceparent.is_absent() { None } else { TraceContext::of_headers(self.headers) }
    }
}

#[cfg(test)]
mod tests {
    use http::header::{
        ACCEPT, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HOST, ORIGIN, TRANSFER_ENCODING,
    };

    use super::*;
    use crate::headers::{
        ACP_CONNECTION_ID, ACP_SESSION_ID, MCP_METHOD, MCP_NAME, MCP_PROTOCOL_VERSION, MCP_SESSION_ID,
    };

    #[test]
    fn each_field_is_found_by_its_name_and_counted() {
        type Find = for<'a> fn(&HeadFields<'a>) -> Field<'a>;
        let fields: [(HeaderName, Find); 14] = [
            (HOST, |fields| fields.host),
            (ORIGIN, |fields| fields.origin),
            (ACCEPT, |fields| fields.accept),
            (CONTENT_TYPE, |fields| fields.content_type),
            (CONTENT_ENCODING, |fields| fields.content_encoding),
            (CONTENT_LENGTH, |fields| fields.content_length),
            (TRANSFER_ENCODING, |fields| fields.transfer_encoding),
            (HeaderName::from_static("traceparent"), |fields| fields.traceparent),
            (MCP_PROTOCOL_VERSION, |fields| fields.mcp_version),
            (MCP_SESSION_ID, |fields| fields.mcp_session),
            (MCP_METHOD, |fields| fields.mcp_method),
            (MCP_NAME, |fields| fields.mcp_name),
            (ACP_CONNECTION_ID, |fields| fields.acp_connection),
            (ACP_SESSION_ID, |fields| fields.acp_session),
        ];
        for (name, find) in &fields {
            let mut headers = HeaderMap::new();
            headers.insert(HeaderName::from_static("x-other"), HeaderValue::from_static("other"));
            assert!(find(&HeadFields::of(&headers)).is_absent(), "{name}");
            headers.insert(name, HeaderValue::from_static("first"));
            let once = HeadFields::of(&headers);
            assert_eq!(find(&once).single(name.as_str()).unwrap(), Some("first"));
            assert_eq!(once.bytes, "x-otherother".len() + name.as_str().len() + "first".len());
            headers.append(name, HeaderValue::from_static("second"));
            let twice = HeadFields::of(&headers);
            assert!(find(&twice).single(name.as_str()).is_err(), "{name}");
            assert_eq!(find(&twice).first().unwrap(), "first");
            let others = fields.iter().filter(|(other, find)| other != name && !find(&twice).is_absent());
            assert_eq!(others.count(), 0, "{name}");
        }
    }
}
