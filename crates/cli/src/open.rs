//! Opens what an endpoint names: a listener, or a connection.

use std::path::Path;
use std::pin::Pin;

use rescind::http::{HttpClient, HttpServer, Streamable, StreamableTransport};
use rescind::named_pipe::{NamedPipeListener, NamedPipeTransport};
use rescind::websocket::{ClientTls, ServerTls, UpgradeOptions, WebSocketListener};
use rescind::{Link, Listener, Transport, TransportError};

use crate::endpoint::{Binding, Endpoint, Place, Web};

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
        Endpoint::Http(web) => match place.binding {
            Binding::Streamable => listen_streamable(place, web).await,
            Binding::Stateless | Binding::Acp => Err(not_here(place)),
        },
    }
}

async fn listen_streamable(place: &Place, web: &Web) -> Result<AnyListener, String> {
    // MCP's sessions begin with `initialize`; what may be said before it elsewhere, the dialect decides.
    let binding =
        if place.dialect == "mcp" { Streamable::new() } else { Streamable::new().opened_by_any_message() };
    let mut server = HttpServer::new(binding).path(web.path_alone());
    if let Some((certificate, key)) = &place.identity {
        server = server.tls(&read(certificate)?, &read(key)?).map_err(|error| source(&error))?;
    }
    let listener = server.bind(&web.address()).await;
    let listener =
        listener.map_err(|error| format!("cannot listen on {}: {}", web.address(), error.source))?;
    Ok(Box::pin(listener))
}

fn read(file: &Path) -> Result<Vec<u8>, String> {
    std::fs::read(file).map_err(|error| format!("{} could not be read: {error}", file.display()))
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
        Endpoint::Http(_) => match place.binding {
            Binding::Streamable => Box::new(StreamableTransport::new(http_client(place)?)),
            Binding::Stateless | Binding::Acp => return Err(not_here(place)),
        },
    };
    transport.open().await.map_err(|error| source(&error))
}

fn http_client(place: &Place) -> Result<HttpClient, String> {
    let client = HttpClient::new(&place.endpoint.to_string()).map_err(|error| source(&error))?;
    match &place.authority {
        Some(authority) => client.tls_authorities(&read(authority)?).map_err(|error| source(&error)),
        None => Ok(client),
    }
}

/// What happened, without the words for its kind: the sentence around it says that much.
fn source(error: &TransportError) -> String {
    error.source.to_string()
}

fn not_here(place: &Place) -> String {
    let binding = place.binding.name();
    format!("this release does not have the binding {binding} of {} yet", place.endpoint)
}
