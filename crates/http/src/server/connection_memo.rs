//! Remembers the host and the client of a connection, so that they are checked and looked up once for all its requests.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use http::Uri;
use rescind_core::Client;

use super::Settings;
use crate::server::checks::{Field, HeadFields};

/// The longest host that is kept, in bytes. A longer one is checked each time.
const MAX_HOST_BYTES: usize = 256;

/// The memo of one connection.
#[derive(Debug, Default)]
pub(super) struct ConnectionMemo(Mutex<Memo>);

#[derive(Debug, Default)]
struct Memo {
    /// The host of a request that was accepted, as it was sent.
    host: Option<Box<[u8]>>,
    /// The client, and the table in which it was found.
    client: Option<(usize, Arc<Client>)>,
}

impl ConnectionMemo {
    /// Whether an earlier request named the same host, in the same bytes, and was accepted.
    pub(super) fn is_known_host(&self, target: &Uri, fields: &HeadFields<'_>) -> bool {
        let memo = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        memo.host.as_deref().is_some_and(|known| only_host(target, fields) == Some(known))
    }

    /// Notes the host of a request that is accepted.
    pub(super) fn note_host(&self, target: &Uri, fields: &HeadFields<'_>) {
        let mut memo = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        memo.host = only_host(target, fields).filter(|host| host.len() <= MAX_HOST_BYTES).map(Into::into);
    }

    /// The client at this address, which is that of the connection.
    pub(super) fn client(&self, settings: &Settings, address: Option<IpAddr>) -> Arc<Client> {
        let mut memo = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let table = settings.clients.table();
        match &memo.client {
            Some((of, client)) if *of == table => Arc::clone(client),
            Some(_) | None => {
                let client = settings.clients.client(None, address);
                memo.client = Some((table, Arc::clone(&client)));
                client
            }
        }
    }
}

/// The host of a request that names one host in one place.
fn only_host<'a>(target: &'a Uri, fields: &HeadFields<'a>) -> Option<&'a [u8]> {
    match (target.authority(), fields.host) {
        (None, Field::Once(host)) => Some(host.as_bytes()),
        (Some(authority), Field::Absent) => Some(authority.as_str().as_bytes()),
        (None | Some(_), Field::Absent | Field::Once(_) | Field::Several(_)) => None,
    }
}
