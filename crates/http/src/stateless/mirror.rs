//! Arguments of tools that headers mirror: `Mcp-Param-*`, which a tool's schema requests with `x-mcp-header`.
//!
//! # One pass over a body
//!
//! `Members` reads what headers repeat: of the envelope, of `params` and of `_meta`.
//!
//! Only usual messages are read: one object with `method` before `params`, no escape in a name, nothing twice.
//! [`Message`](super::mirrored_headers::Message) reads all others member by member, and decides why a body is not a
//! message.

use std::fmt;

use http::{HeaderMap, HeaderName};
use rescind_core::members::present;
use rescind_core::{MirroredBodies, TransportError, TransportErrorKind};
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::envelope::MCP_PARAM;
use crate::server::checks::Field;
use crate::stateless::mirrored_headers::{META, decode, name_member, single};

/// The arguments that are mirrored, by tool.
#[derive(Clone, Debug, Default)]
pub(super) struct Mirrors(Vec<Mirror>);

#[derive(Clone, Debug)]
struct Mirror {
    tool: String,
    /// The names from the outermost object inwards, starting in the arguments.
    path: Vec<String>,
    header: HeaderName,
}

impl Mirrors {
    /// Adds an argument.
    pub(super) fn add(&mut self, tool: &str, argument: &[&str], name: &str) -> Result<(), TransportError> {
        let refused = |text: String| TransportError::new(TransportErrorKind::Open, text);
        let header = HeaderName::try_from(format!("{MCP_PARAM}{name}")).ok().filter(|_| !name.is_empty());
        let header = header.ok_or_else(|| refused(format!("{name:?} cannot be part of a header's name")))?;
        if argument.is_empty() {
            return Err(refused(format!("{header} of {tool} mirrors no argument")));
        }
        if self.0.iter().any(|mirror| mirror.tool == tool && mirror.header == header) {
            return Err(refused(format!("{header} of {tool} is there already")));
        }
        let path = argument.iter().map(|&name| name.to_owned()).collect();
        self.0.push(Mirror { tool: tool.to_owned(), path, header });
        Ok(())
    }

    pub(super) fn of(&self, tool: &str) -> bool {
        self.0.iter().any(|mirror| mirror.tool == tool)
    }

    /// The headers of a call of this tool, with the decoded value of each.
    pub(super) fn values(&self, tool: &str, arguments: &Value) -> Vec<(HeaderName, String)> {
        let own = self.0.iter().filter(|mirror| mirror.tool == tool);
        own.filter_map(|mirror| Some((mirror.header.clone(), mirror.value(arguments)?))).collect()
    }

    /// Compares the arguments of a call of this tool with its headers. The error describes the first difference.
    pub(super) fn check(&self, tool: &str, arguments: &Value, headers: &HeaderMap) -> Result<(), String> {
        for mirror in self.0.iter().filter(|mirror| mirror.tool == tool) {
            let name = &mirror.header;
            let Some(value) = mirror.value(arguments) else {
                if headers.contains_key(name) {
                    return Err(format!("Header mismatch: {name} mirrors an argument that is not there"));
                }
                continue;
            };
            let reported = decode(single(Field::named(headers, name), name)?);
            if !reported.is_some_and(|reported| reported == value || is_same_number(&reported, &value)) {
                return Err(format!("Header mismatch: {name} differs from the body's argument"));
            }
        }
        Ok(())
    }
}

impl Mirror {
    /// The value that the header mirrors. `None`: the argument is missing or null, or its type cannot be mirrored.
    fn value(&self, arguments: &Value) -> Option<String> {
        let inner = self.path.iter().try_fold(arguments, |inner, name| inner.get(name))?;
        match inner {
            Value::String(text) => Some(text.clone()),
            Value::Bool(value) => Some(value.to_string()),
            // Decimal, without an exponent, as other clients write it.
            Value::Number(number) if number.is_f64() => number.as_f64().map(|number| number.to_string()),
            Value::Number(number) => Some(number.to_string()),
            Value::Null | Value::Array(_) | Value::Object(_) => None,
        }
    }
}

/// `42` and `42.0` are the same number, and so are two texts that are parsed to the same float.
fn is_same_number(one: &str, other: &str) -> bool {
    let number = |text: &str| text.parse::<f64>().ok().filter(|number| number.is_finite());
    number(one).is_some_and(|one| number(other).is_some_and(|other| one.total_cmp(&other).is_eq()))
}

/// The members of a usual message.
#[derive(Debug, Default)]
pub(super) struct Members<'a> {
    pub(super) jsonrpc: Option<&'a str>,
    pub(super) id: Option<&'a RawValue>,
    pub(super) method: Option<&'a str>,
    pub(super) params: Params<'a>,
}

/// The members of its params.
#[derive(Debug, Default)]
pub(super) struct Params<'a> {
    /// The name in the message, if its method is one whose messages have a name.
    pub(super) name: Option<&'a RawValue>,
    pub(super) meta: Meta<'a>,
}

/// The members of their `_meta`.
#[derive(Debug, Default)]
pub(super) struct Meta<'a> {
    pub(super) revision: Option<&'a str>,
    pub(super) has_capabilities: bool,
}

/// `None`: the message is not usual, or the text is not a message.
pub(super) fn read<'a>(text: &'a str, bodies: &'static MirroredBodies) -> Option<Members<'a>> {
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let members = EnvelopePass(bodies).deserialize(&mut deserializer).ok()?;
    deserializer.end().ok()?;
    Some(members)
}

fn unusual<E: Error>() -> E {
    E::custom("an unusual message")
}

/// Stores a member, which may occur only once.
fn put<T, E: Error>(place: &mut Option<T>, value: T) -> Result<(), E> {
    if place.replace(value).is_none() { Ok(()) } else { Err(unusual()) }
}

struct EnvelopePass(&'static MirroredBodies);
struct ParamsPass<'m>(&'static MirroredBodies, Option<&'m str>);
struct MetaPass(&'static MirroredBodies);

/// Each pass reads an object.
macro_rules! reads_an_object {
    ($pass:ty, $value:ident) => {
        impl<'de> DeserializeSeed<'de> for $pass {
            type Value = $value<'de>;

            fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
                deserializer.deserialize_map(self)
            }
        }
    };
}

reads_an_object!(EnvelopePass, Members);
reads_an_object!(ParamsPass<'_>, Params);
reads_an_object!(MetaPass, Meta);

impl<'de> Visitor<'de> for EnvelopePass {
    type Value = Members<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a message")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut members = Members::default();
        let mut params = None;
        let mut others = [None; 3];
        while let Some(name) = map.next_key::<&'de str>()? {
            match name {
                "jsonrpc" => put(&mut members.jsonrpc, map.next_value()?)?,
                "id" => put(&mut members.id, map.next_value()?)?,
                "method" => put(&mut members.method, map.next_value()?)?,
                "params" => {
                    let method = members.method.ok_or_else(unusual)?;
                    let pass = ParamsPass(self.0, name_member(method, self.0));
                    put(&mut params, map.next_value_seed(pass)?)?;
                }
                "type" => put(&mut others[0], map.next_value::<IgnoredAny>()?)?,
                "result" => put(&mut others[1], map.next_value::<IgnoredAny>()?)?,
                "error" => put(&mut others[2], map.next_value::<IgnoredAny>()?)?,
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        members.params = params.unwrap_or_default();
        Ok(members)
    }
}

impl<'de> Visitor<'de> for ParamsPass<'_> {
    type Value = Params<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("params")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let (mut name, mut meta) = (None, None);
        while let Some(member) = map.next_key::<&'de str>()? {
            if member == META {
                put(&mut meta, map.next_value_seed(MetaPass(self.0))?)?;
            } else if Some(member) == self.1 {
                put(&mut name, map.next_value::<&'de RawValue>()?)?;
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(Params { name: present(name), meta: meta.unwrap_or_default() })
    }
}

impl<'de> Visitor<'de> for MetaPass {
    type Value = Meta<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("_meta")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let (mut revision, mut capabilities) = (None, None);
        while let Some(member) = map.next_key::<&'de str>()? {
            if member == self.0.revision_member {
                put(&mut revision, map.next_value()?)?;
            } else if member == self.0.capabilities_member {
                put(&mut capabilities, map.next_value::<&'de RawValue>()?)?;
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(Meta { revision, has_capabilities: present(capabilities).is_some() })
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use serde_json::json;

    use super::*;

    fn mirrors() -> Mirrors {
        let mut mirrors = Mirrors::default();
        mirrors.add("query", &["region"], "Region").unwrap();
        mirrors.add("query", &["limits", "rows"], "Rows").unwrap();
        mirrors
    }

    #[test]
    fn an_invalid_or_repeated_mirror_name_is_refused() {
        let mut mirrors = mirrors();
        for (argument, name) in
            [(&["a"][..], ""), (&["a"], "a b"), (&["a"], "ä\n"), (&["a"], "REGION"), (&[], "A")]
        {
            assert!(mirrors.add("query", argument, name).is_err(), "{name:?}");
        }
        mirrors.add("other", &["a"], "Region").unwrap();
    }

    #[test]
    fn only_present_arguments_are_mirrored() {
        for (arguments, wanted) in [
            (json!({"region": "us-west1", "limits": {"rows": 42}}), vec!["us-west1", "42"]),
            (json!({"region": true, "limits": {"rows": 1e3}}), vec!["true", "1000"]),
            (json!({"region": null, "limits": 7}), vec![]),
            (json!({"region": ["x"], "limits": {"rows": {}}}), vec![]),
            (json!([]), vec![]),
        ] {
            let values = mirrors().values("query", &arguments);
            let values: Vec<_> = values.iter().map(|(_, value)| value.as_str()).collect();
            assert_eq!(values, wanted, "{arguments}");
        }
        assert!(mirrors().values("other", &json!({"region": "x"})).is_empty());
    }

    #[test]
    fn a_header_that_differs_is_missing_or_too_many_is_a_mismatch() {
        let region = HeaderName::from_static("mcp-param-region");
        let with =
            |value: &'static str| HeaderMap::from_iter([(region.clone(), HeaderValue::from_static(value))]);
        let mirrors = mirrors();
        for (headers, argument, fits) in [
            (with("us-west1"), json!("us-west1"), true),
            (with("=?base64?ZMO8?="), json!("dü"), true),
            (with("42"), json!(42.0), true),
            (with("us-east1"), json!("us-west1"), false),
            (with("=?base64?!?="), json!("x"), false),
            (HeaderMap::new(), json!("us-west1"), false),
            (HeaderMap::new(), json!(null), true),
            (with("null"), json!(null), false),
        ] {
            let reported = mirrors.check("query", &json!({"region": argument}), &headers);
            assert_eq!(reported.is_ok(), fits, "{headers:?} {argument}");
            assert!(mirrors.check("other", &json!({"region": argument}), &headers).is_ok());
        }
    }
}
