//! Reads what headers repeat in one pass over a body: of its envelope, of `params` and of `_meta`.
//!
//! Only usual messages are read: one object with `method` before `params`, no escape in a name, nothing twice.
//! [`Message`](super::mirrored_headers::Message) reads all others member by member, and decides why a body is not a
//! message.

use std::fmt;

use rescind_core::MirroredBodies;
use rescind_core::members::present;
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::mirrored_headers::{META, name_member};

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
