//! Opens what an endpoint names: a listener, or a connection.

use std::pin::Pin;

use rescind::named_pipe::{NamedPipeListener, NamedPipeTransport};
use rescind::websocket::{ClientTls, ServerTls, UpgradeOptions, WebSocketListener};
use rescind::{Link, Listener, Transport, TransportError};

use crate::endpoint::{Endpoint, Place};

/// A listener of any wire.
pub(crate) type AnyListener = Pin<Box<dyn Listener>>;

/// Listens there.
///
/// # Errors
/// Why it cannot, in one sentence.
pub(crate) async fn listen(place: &Place) -> Result<AnyListener, String> {
    match &place.endpoint {
        Endpoint::Stdio => Err("stdio is this process's own; nobody else can connect to it".to_owned()),
        Endpoint::Pipe(address) => {
            let listener = NamedPipeListener::bind(address).await.map_err(|error| error.to_string())?;
            Ok(Box::pin(listener.framing(place.framing)))
        }
        Endpoint::WebSocket(web) => {
            let mut listener = WebSocketListener::builder();
            if web.path != "/" {
                listener = listener.options(UpgradeOptions::new().path(&web.path));
            }
            if let Some((certificate, key)) = &place.identity {
                let tls = ServerTls::from_pem_files(certificate, key).map_err(|error| source(&error))?;
                listener = listener.tls(tls);
            }
            let listener = listener.bind(&web.address()).await.map_err(|error| source(&error))?;
            Ok(Box::pin(listener))
        }
        Endpoint::Http(_) => Err(not_here(&place.endpoint)),
    }
}

/// Connects to it.
///
/// # Errors
/// Why it cannot, in one sentence.
pub(crate) async fn connect(place: &Place) -> Result<Link, String> {
    let transport: Box<dyn Transport> = match &place.endpoint {
        Endpoint::Stdio => {
            return Err("stdio is an endpoint of `fixture`; give the peer's command after `--`".to_owned());
        }
        Endpoint::Pipe(address) => Box::new(NamedPipeTransport::new(address.clone()).framing(place.framing)),
        Endpoint::WebSocket(_) => {
            let mut transport = rescind::websocket::connect(&place.endpoint.to_string());
            if let Some(authority) = &place.authority {
                transport =
                    transport.tls(ClientTls::from_ca_file(authority).map_err(|error| source(&error))?);
            }
            Box::new(transport)
        }
        Endpoint::Http(_) => return Err(not_here(&place.endpoint)),
    };
    transport.open().await.map_err(|error| source(&error))
}

/// What happened, without the words for its kind: the sentence around it says that much.
fn source(error: &TransportError) -> String {
    error.source.to_string()
}

fn not_here(endpoint: &Endpoint) -> String {
    format!("this release does not open {endpoint}; it opens stdio, pipe:, ws:// and wss://")
}
