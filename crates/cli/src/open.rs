//! Opens an endpoint as a listener or as a connection.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use rescind::AcpEndpoint;
use rescind::ClientCertificates;
use rescind::http::{
    Acp, AcpTransport, HttpClient, HttpServer, LegacySse, LegacySseTransport, ServerBinding, Stateless,
    StatelessTransport, Streamable, StreamableTransport,
};
use rescind::named_pipe::{NamedPipeListener, NamedPipeTransport};
use rescind::tls::{ClientTls, Pem, ServerTls};
use rescind::transport::{Link, Listener, Transport, TransportError};
use rescind::websocket::{BinaryMessages, IgnoredCounter, LinkOptions, UpgradeOptions, WebSocketListener};

use rescind_testkit::dialects::{DialectFacts, HttpBinding};

use crate::endpoint::{Endpoint, Target, Web};
use crate::token::NamedToken;

/// A listener of any transport.
pub(crate) type AnyListener = Pin<Box<dyn Listener>>;

/// Listens at the endpoint.
///
/// # Errors
/// The reason why it cannot, in one sentence.
pub(crate) async fn listen(target: &Target) -> Result<AnyListener, String> {
    match &target.endpoint {
        Endpoint::Stdio => {
            Err("stdio belongs to this process; no other process can connect to it".to_owned())
        }
        Endpoint::Pipe(address) => {
            let listener = NamedPipeListener::bind(address).await.map_err(|error| error.to_string())?;
            Ok(Box::pin(listener.framing(target.framing)))
        }
        Endpoint::WebSocket(web) => {
            let mut options = upgrade_options(target.dialect).host_advice(HOST_ADVICE);
            if target.dialect.is_carried_by(HttpBinding::Acp) {
                options = options.answer_with("acp-connection-id", connection_id);
            }
            if let Some(token) = &target.settings.token {
                options = options.auth(token.hook());
            }
            if !target.settings.principals.is_empty() {
                options = options.auth(NamedToken::hook(target.settings.principals.clone()));
            }
            for host in &target.settings.hosts {
                options = options.allow_host(host).map_err(|error| error.to_string())?;
            }
            for origin in &target.settings.origins {
                options = options.allow_origin(origin).map_err(|error| error.to_string())?;
            }
            if web.path != "/" {
                options = options.path(&web.path);
            }
            let mut listener = WebSocketListener::builder().options(options);
            if let Some(tls) = server_tls(target)? {
                listener = listener.tls(tls);
            }
            let listener = listener.bind(&web.address()).await.map_err(|error| source(&error))?;
            Ok(Box::pin(listener))
        }
        Endpoint::Http(web) => listen_http(target, web).await,
    }
}

/// Connects to the endpoint within this time.
///
/// # Errors
/// The reason why it cannot, in one sentence.
pub(crate) async fn connect(target: &Target, within: Duration) -> Result<Link, String> {
    let transport: Box<dyn Transport> = match &target.endpoint {
        Endpoint::Stdio => {
            return Err("stdio is an endpoint of `fixture`; give the peer's command after `--`".to_owned());
        }
        Endpoint::Pipe(address) => Box::new(NamedPipeTransport::new(address.clone()).framing(target.framing)),
        Endpoint::WebSocket(_) => {
            let transport = rescind::websocket::connect(&target.endpoint.to_string());
            let mut transport = transport.options(link_options(target.dialect)).handshake_timeout(within);
            // Some servers select theirs unasked, which a client must refuse.
            for name in target.dialect.dialect.rules().subprotocols {
                transport = transport.offer_subprotocol(name);
            }
            if let Some(token) = &target.settings.token_file {
                transport = transport.header("authorization", &token.header().await);
            }
            if let Some(tls) = client_tls(target)? {
                transport = transport.tls(tls);
            }
            Box::new(transport)
        }
        Endpoint::Http(_) => http_client(target, within)?,
    };
    transport.open().await.map_err(|error| source(&error))
}

/// The connection id that ACP's draft requires in the answer to an upgrade: 128 random bits of the operating system,
/// in hexadecimal. Empty, and so omitted, if the system returns none.
fn connection_id() -> String {
    let mut bits = [0; 16];
    getrandom::fill(&mut bits).map(|()| format!("{:032x}", u128::from_ne_bytes(bits))).unwrap_or_default()
}

/// The text that the refusal of a host has besides its reason.
const HOST_ADVICE: &str = "allow the name with --allow-host NAME";

/// The options of a WebSocket server for this dialect: its links, and the subprotocols that it knows.
fn upgrade_options(facts: &DialectFacts) -> UpgradeOptions {
    let options = UpgradeOptions::new().link(link_options(facts));
    facts.dialect.rules().subprotocols.iter().fold(options, |options, name| options.subprotocol(name))
}

/// In ACP's draft, binary frames are ignored. In other dialects they are invalid messages.
fn link_options(facts: &DialectFacts) -> LinkOptions {
    let options = LinkOptions::new();
    if facts.is_carried_by(HttpBinding::Acp) {
        return options.binary(BinaryMessages::Ignore(IgnoredCounter::new()));
    }
    options
}

async fn listen_http(target: &Target, web: &Web) -> Result<AnyListener, String> {
    match target.binding {
        HttpBinding::Streamable if target.settings.sessionless => {
            bind(target, web, Streamable::new().sessionless()).await
        }
        HttpBinding::Streamable if target.dialect.defines_streamable && !target.settings.any_opening => {
            bind(target, web, Streamable::new()).await
        }
        // The protocol decides which messages are allowed before the handshake.
        HttpBinding::Streamable => bind(target, web, Streamable::new().opened_by_any_message()).await,
        HttpBinding::Stateless => bind(target, web, Stateless::new()).await,
        // The same path serves WebSocket clients, which ask for the upgrade.
        HttpBinding::Acp => {
            let endpoint = AcpEndpoint::new(server(target, web, Acp::new())?);
            bound(web, endpoint.websocket(upgrade_options(target.dialect)).bind(&web.address()).await)
        }
        HttpBinding::LegacySse => bind(target, web, LegacySse::new()).await,
    }
}

async fn bind(target: &Target, web: &Web, binding: impl ServerBinding) -> Result<AnyListener, String> {
    bound(web, server(target, web, binding)?.bind(&web.address()).await)
}

fn server<B: ServerBinding>(target: &Target, web: &Web, binding: B) -> Result<HttpServer<B>, String> {
    let server = HttpServer::new(binding).path(web.path_alone());
    let mut server =
        server.allow_host(&web.host).map_err(|error| error.to_string())?.host_advice(HOST_ADVICE);
    for host in &target.settings.hosts {
        server = server.allow_host(host).map_err(|error| error.to_string())?;
    }
    for origin in &target.settings.origins {
        server = server.allow_origin(origin).map_err(|error| error.to_string())?;
    }
    if let Some(token) = &target.settings.token {
        server = server.auth(token.hook());
        if !target.settings.origins.is_empty() {
            server = server.allow_header("authorization").map_err(|error| source(&error))?;
        }
    }
    if !target.settings.principals.is_empty() {
        server = server.auth(NamedToken::hook(target.settings.principals.clone()));
    }
    if let Some(router) = &target.settings.router {
        server = server.session_router(Arc::clone(router));
    }
    if target.settings.legacy_sse {
        server = server.legacy_sse(LegacySse::new());
    }
    if let Some(sessions) = target.settings.sessions {
        server = server.sessions(sessions);
    }
    if let Some(idle) = target.settings.idle {
        server = server.session_idle(idle);
    }
    Ok(match server_tls(target)? {
        None => server,
        Some(tls) => server.tls(tls),
    })
}

fn bound(
    web: &Web,
    listener: Result<impl Listener + 'static, TransportError>,
) -> Result<AnyListener, String> {
    let listener =
        listener.map_err(|error| format!("cannot listen on {}: {}", web.address(), error.source))?;
    Ok(Box::pin(listener))
}

fn http_client(target: &Target, within: Duration) -> Result<Box<dyn Transport>, String> {
    let mut client = http_options(target, within)?;
    if let Some(token) = &target.settings.token_file {
        client = client.authorization(token.authorization());
    } else if let Some(login) = &target.settings.login {
        client = client.authorization(login.authorization());
    }
    Ok(match target.binding {
        // Frames are sent in order, as the scenarios list them.
        HttpBinding::Streamable => Box::new(StreamableTransport::new(client).in_order()),
        HttpBinding::Stateless => Box::new(StatelessTransport::new(client)),
        HttpBinding::Acp => Box::new(AcpTransport::new(client)),
        HttpBinding::LegacySse => Box::new(LegacySseTransport::new(client).in_order()),
    })
}

/// A client of the endpoint, with its TLS and without credentials.
///
/// # Errors
/// The reason why there is none, in one sentence.
pub(crate) fn http_options(target: &Target, within: Duration) -> Result<HttpClient, String> {
    let client = HttpClient::new(&target.endpoint.to_string()).map_err(|error| source(&error))?;
    let client = client.connect_timeout(within);
    Ok(match client_tls(target)? {
        None => client,
        Some(tls) => client.tls(tls),
    })
}

/// The certificate of a server and what it requires of clients, if the endpoint uses TLS.
fn server_tls(target: &Target) -> Result<Option<ServerTls>, String> {
    let Some((certificate, key)) = &target.identity else { return Ok(None) };
    let made = ServerTls::from_pem(Pem::file(certificate), Pem::file(key));
    let made = match &target.client_authority {
        None => made,
        Some(file) => {
            made.and_then(|tls| tls.client_certificates(Pem::file(file), ClientCertificates::Required))
        }
    };
    made.map(Some).map_err(|error| error.to_string())
}

/// The authority that a client trusts and the certificate that it shows, if either is named.
fn client_tls(target: &Target) -> Result<Option<ClientTls>, String> {
    if target.authority.is_none() && target.identity.is_none() {
        return Ok(None);
    }
    let made = match &target.authority {
        None => Ok(ClientTls::system()),
        Some(file) => ClientTls::trusting(Pem::file(file)),
    };
    let made = match &target.identity {
        None => made,
        Some((certificate, key)) => made.and_then(|tls| tls.identity(Pem::file(certificate), Pem::file(key))),
    };
    made.map(Some).map_err(|error| error.to_string())
}

/// The source of the error, without the name of its kind, which the surrounding sentence already contains.
fn source(error: &TransportError) -> String {
    error.source.to_string()
}
