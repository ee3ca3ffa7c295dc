//! Where a peer is reached or the fixture is served: the syntax of endpoints, and the flags that an endpoint allows.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use http::Uri;
use rescind::Framing;
use rescind::http::SessionRouter;
use rescind::named_pipe::PipeAddress;
use rescind_testkit::dialects::{DialectFacts, HttpBinding};

use crate::login::Login;
use crate::token::{NamedToken, Token, TokenFile};

/// How an endpoint carries messages.
#[derive(Debug, Args)]
pub(crate) struct WireOptions {
    /// Framing of a byte stream (stdio, pipe:): newline or content-length. [default: the dialect's]
    #[arg(long, value_name = "F", value_parser = ["newline", "content-length"])]
    pub(crate) framing: Option<String>,
    /// Binding of http:// and https://: streamable, stateless, acp or legacy-sse. [default: the dialect's]
    #[arg(long, value_name = "B", value_parser = bindings())]
    pub(crate) binding: Option<HttpBinding>,
}

/// The dialect with this name.
pub(crate) fn dialect(name: &str) -> Result<&'static DialectFacts, String> {
    DialectFacts::by_name(name).ok_or_else(|| {
        let names = rescind::dialect::ALL.each_ref().map(rescind::dialect::Dialect::name);
        format!("the dialects are {}", names.join(", "))
    })
}

/// Reads the name of a binding.
pub(crate) fn bindings() -> impl TypedValueParser<Value = HttpBinding> {
    let named = |name: String| HttpBinding::ALL.into_iter().find(|binding| binding.name() == name);
    PossibleValuesParser::new(HttpBinding::ALL.map(HttpBinding::name))
        .try_map(move |name| named(name).ok_or("there is no such binding"))
}

/// An endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Endpoint {
    /// This process's stdin and stdout.
    Stdio,
    /// `pipe:PATH-OR-NAME`.
    Pipe(PipeAddress),
    /// `ws://` and `wss://`.
    WebSocket(Web),
    /// `http://` and `https://`.
    Http(Web),
}

/// The part of an endpoint that is a URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Web {
    pub(crate) security: Security,
    /// Includes the brackets of an IPv6 address.
    pub(crate) host: String,
    pub(crate) port: u16,
    /// Includes its query.
    pub(crate) path: String,
}

/// Whether the endpoint uses TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Security {
    Plain,
    Tls,
}

const FORMS: &str = "the endpoints are stdio, pipe:PATH-OR-NAME, ws://HOST:PORT/PATH, wss://HOST:PORT/PATH, \
                     http://HOST:PORT/PATH and https://HOST:PORT/PATH";

impl FromStr for Endpoint {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "stdio" {
            return Ok(Self::Stdio);
        }
        if let Some(target) = text.strip_prefix("pipe:") {
            return target.parse().map(Self::Pipe).map_err(|error| error.to_string());
        }
        match text.split_once("://").map(|(scheme, _)| scheme) {
            Some("ws") => Ok(Self::WebSocket(Web::parse(text, Security::Plain)?)),
            Some("wss") => Ok(Self::WebSocket(Web::parse(text, Security::Tls)?)),
            Some("http") => Ok(Self::Http(Web::parse(text, Security::Plain)?)),
            Some("https") => Ok(Self::Http(Web::parse(text, Security::Tls)?)),
            _ => Err(FORMS.to_owned()),
        }
    }
}

impl Web {
    fn parse(text: &str, security: Security) -> Result<Self, String> {
        if text.contains('#') {
            return Err("an endpoint must not have a fragment (`#`)".to_owned());
        }
        let uri: Uri = text.parse().map_err(|error| format!("it is not a URL: {error}"))?;
        let authority = uri.authority().ok_or("it has no host: give HOST:PORT")?;
        if authority.as_str().contains('@') {
            return Err("an endpoint must not have a user name or a password".to_owned());
        }
        let host = authority.host();
        let port = match authority.as_str().strip_prefix(host).and_then(|rest| rest.strip_prefix(':')) {
            None => security.default_port(),
            Some(port) => port.parse().map_err(|_| {
                format!("`{port}` is not a port: give a number up to 65535, or 0 for a free one")
            })?,
        };
        if host.is_empty() {
            return Err("it has no host: give HOST:PORT".to_owned());
        }
        let path = uri.path_and_query().map_or("/", |path| path.as_str());
        Ok(Self { security, host: host.to_owned(), port, path: path.to_owned() })
    }

    /// The path without its query.
    pub(crate) fn path_alone(&self) -> &str {
        self.path.split_once('?').map_or(self.path.as_str(), |(path, _)| path)
    }

    /// `HOST:PORT`, to bind to.
    pub(crate) fn address(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }
}

impl Security {
    const fn default_port(self) -> u16 {
        match self {
            Self::Plain => 80,
            Self::Tls => 443,
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (scheme, web) = match self {
            Self::Stdio => return f.write_str("stdio"),
            Self::Pipe(address) => return write!(f, "pipe:{address}"),
            Self::WebSocket(web) => ("ws", web),
            Self::Http(web) => ("http", web),
        };
        let secure = match web.security {
            Security::Plain => "",
            Security::Tls => "s",
        };
        write!(f, "{scheme}{secure}://{}{}", web.address(), web.path)
    }
}

impl Web {
    /// Whether only programs of this machine can connect to it.
    pub(crate) fn is_loopback(&self) -> bool {
        let host = self.host.trim_start_matches('[').trim_end_matches(']');
        host.eq_ignore_ascii_case("localhost")
            || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("token", &self.token)
            .field("sessions", &self.sessions)
            .finish_non_exhaustive()
    }
}

/// The side of this program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Server,
    Client,
}

/// The flags that an endpoint may have, as given.
#[derive(Clone, Debug, Default)]
pub(crate) struct Flags {
    pub(crate) framing: Option<String>,
    pub(crate) binding: Option<HttpBinding>,
    pub(crate) tls_cert: Option<PathBuf>,
    pub(crate) tls_key: Option<PathBuf>,
    pub(crate) tls_ca: Option<PathBuf>,
    pub(crate) client_ca: Option<PathBuf>,
}

/// An endpoint with everything that is needed to open it.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) endpoint: Endpoint,
    pub(crate) dialect: &'static DialectFacts,
    pub(crate) framing: Framing,
    pub(crate) binding: HttpBinding,
    /// The certificate that this side shows, and its key.
    pub(crate) identity: Option<(PathBuf, PathBuf)>,
    /// The authority that a client trusts. `None`: those of the system.
    pub(crate) authority: Option<PathBuf>,
    /// The authority that must have issued the certificate of a server's client. `None`: no certificate is requested.
    pub(crate) client_authority: Option<PathBuf>,
    /// The settings that only some commands have.
    pub(crate) settings: Box<Settings>,
}

/// The settings of an endpoint that only some commands have.
#[derive(Clone, Default)]
pub(crate) struct Settings {
    /// The bearer token that a server requires.
    pub(crate) token: Option<Token>,
    /// The bearer token that a client sends.
    pub(crate) token_file: Option<TokenFile>,
    /// The login of a client over HTTP that has no token file.
    pub(crate) login: Option<Login>,
    /// The bearer tokens of a server's clients. Each is a principal.
    pub(crate) principals: Vec<NamedToken>,
    /// Any message opens a session of a streamable server, also in MCP.
    pub(crate) any_opening: bool,
    /// A streamable server has no sessions.
    pub(crate) sessionless: bool,
    /// A streamable server also serves the transport of MCP 2024-11-05.
    pub(crate) legacy_sse: bool,
    /// Where the sessions of a server are, if it is one of several.
    pub(crate) router: Option<Arc<dyn SessionRouter>>,
    /// The most sessions of a server. `None`: the transport's default.
    pub(crate) sessions: Option<usize>,
    /// The longest time for which a server keeps an unused session. `None`: the transport's default.
    pub(crate) idle: Option<Duration>,
    /// The origins of web pages that a server accepts besides its own.
    pub(crate) origins: Vec<String>,
    /// The hosts that a server serves besides its own.
    pub(crate) hosts: Vec<String>,
}

impl Target {
    /// Combines the endpoint with these flags.
    ///
    /// # Errors
    /// If a flag does not belong to this endpoint, or one that it needs is missing.
    pub(crate) fn new(
        endpoint: Endpoint,
        dialect: &'static DialectFacts,
        flags: Flags,
        side: Side,
    ) -> Result<Self, String> {
        let is_bytes = matches!(endpoint, Endpoint::Stdio | Endpoint::Pipe(_));
        let is_http = matches!(endpoint, Endpoint::Http(_));
        let is_secure = matches!(
            endpoint,
            Endpoint::WebSocket(Web { security: Security::Tls, .. })
                | Endpoint::Http(Web { security: Security::Tls, .. })
        );
        if flags.framing.is_some() && !is_bytes {
            return Err(format!(
                "--framing is for byte streams (stdio, pipe:), and {endpoint} has its own framing"
            ));
        }
        if flags.binding.is_some() && !is_http {
            return Err(format!("--binding is for http:// and https:// endpoints, and not for {endpoint}"));
        }
        let identity = match (flags.tls_cert, flags.tls_key) {
            (Some(_), _) | (_, Some(_)) if !is_secure => {
                return Err(format!(
                    "--tls-cert and --tls-key are for wss:// and https://, and not for {endpoint}"
                ));
            }
            (Some(certificate), Some(key)) => Some((certificate, key)),
            (None, None) if is_secure && side == Side::Server => {
                return Err(format!("{endpoint} needs --tls-cert FILE and --tls-key FILE"));
            }
            (None, None) => None,
            (Some(_), None) => return Err("--tls-cert needs --tls-key FILE too".to_owned()),
            (None, Some(_)) => return Err("--tls-key needs --tls-cert FILE too".to_owned()),
        };
        if flags.tls_ca.is_some() && !is_secure {
            return Err(format!("--tls-ca is for wss:// and https://, and not for {endpoint}"));
        }
        if flags.client_ca.is_some() && !is_secure {
            return Err(format!("--client-ca is for wss:// and https://, and not for {endpoint}"));
        }
        let name = dialect.name();
        let usual = dialect.usual_binding();
        let binding = flags.binding.unwrap_or(usual);
        if is_http && !dialect.is_carried_by(binding) {
            let default = usual.name();
            return Err(format!(
                "the binding {} does not carry the dialect {name}; leave --binding out for {default}",
                binding.name()
            ));
        }
        let framing = match &flags.framing {
            Some(name) => framing_named(name),
            None => dialect.dialect.rules().framing,
        };
        Ok(Self {
            endpoint,
            framing,
            binding,
            dialect,
            identity,
            authority: flags.tls_ca,
            client_authority: flags.client_ca,
            settings: Box::default(),
        })
    }

    /// Whether it serves MCP over streamable HTTP. Only then it can be served without sessions.
    pub(crate) fn may_be_sessionless(&self) -> bool {
        matches!(self.endpoint, Endpoint::Http(_))
            && self.binding == HttpBinding::Streamable
            && self.dialect.defines_streamable
    }

    /// Also serves the transport of MCP 2024-11-05, if this is set.
    ///
    /// # Errors
    /// If it does not belong to this endpoint.
    pub(crate) fn set_legacy_sse(&mut self, is_set: bool) -> Result<(), String> {
        if is_set && !self.may_be_sessionless() {
            return Err(
                "--legacy-sse is for the dialect mcp over http:// or https:// with the binding streamable"
                    .to_owned(),
            );
        }
        let own = match &self.endpoint {
            Endpoint::Http(web) if is_set => Some(web.path_alone()),
            _ => None,
        };
        if let Some(path @ ("/sse" | "/messages")) = own {
            return Err(format!(
                "--legacy-sse serves /sse and /messages, and {path} is the path of --listen"
            ));
        }
        self.settings.legacy_sse = is_set;
        Ok(())
    }

    /// The wire's name in reports.
    pub(crate) const fn wire(&self) -> &'static str {
        match self.endpoint {
            Endpoint::Stdio => "stdio",
            Endpoint::Pipe(_) => "named-pipe",
            Endpoint::WebSocket(_) => "websocket",
            Endpoint::Http(_) => self.binding.wire(),
        }
    }
}

/// The framing with this name. The command line accepts no other name.
fn framing_named(name: &str) -> Framing {
    match name {
        "content-length" => Framing::ContentLength,
        _ => Framing::Newline,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Endpoint {
        text.parse().unwrap_or_else(|why| panic!("{text}: {why}"))
    }

    fn target(text: &str, dialect: &str, flags: Flags, side: Side) -> Result<Target, String> {
        Target::new(parse(text), DialectFacts::by_name(dialect).unwrap(), flags, side)
    }

    #[test]
    fn an_endpoint_is_displayed_as_given() {
        for text in [
            "stdio",
            "pipe:my-agent",
            "pipe:/run/user/1000/my agent.sock",
            "ws://127.0.0.1:0/",
            "wss://localhost:8443/agent?x=1",
            "http://[::1]:9000/mcp",
            "https://agent.example:443/acp",
        ] {
            assert_eq!(parse(text).to_string(), text);
        }
        assert_eq!(parse("ws://localhost").to_string(), "ws://localhost:80/");
        assert_eq!(parse("https://agent.example/mcp").to_string(), "https://agent.example:443/mcp");
    }

    #[test]
    fn an_invalid_endpoint_is_refused_with_a_hint() {
        for (text, word) in [
            ("smoke", "the endpoints are stdio"),
            ("tcp://localhost:1", "the endpoints are stdio"),
            ("", "the endpoints are stdio"),
            ("pipe:", "a file's"),
            ("pipe:..", "a file's"),
            ("ws://", "not a URL"),
            ("ws://:80/", "host"),
            ("ws://localhost:65536/", "not a port"),
            ("ws://localhost:x/", "not a port"),
            ("http://me:secret@localhost:1/", "user name"),
            ("http://localhost:1/#there", "fragment"),
        ] {
            let why = text.parse::<Endpoint>().unwrap_err();
            assert!(why.contains(word), "{text}: {why}");
            assert!(!why.contains("secret"), "{why}");
        }
    }

    #[test]
    fn the_default_binding_is_that_of_the_dialect() {
        for (dialect, wire) in [
            ("mcp", "http-streamable"),
            ("mcp-2026", "http-stateless"),
            ("acp", "http-acp"),
            ("acp-v2", "http-acp"),
            ("acp-draft", "http-acp"),
            ("lsp", "http-streamable"),
            ("abp", "http-streamable"),
        ] {
            let target = target("http://localhost:1/", dialect, Flags::default(), Side::Client).unwrap();
            assert_eq!(target.wire(), wire, "{dialect}");
        }
        let streamable = Flags { binding: Some(HttpBinding::Streamable), ..Flags::default() };
        let acp = target("http://localhost:1/", "acp", streamable.clone(), Side::Server).unwrap();
        assert_eq!(acp.wire(), "http-streamable");
        let legacy = Flags { binding: Some(HttpBinding::LegacySse), ..Flags::default() };
        let mcp = target("http://localhost:1/sse", "mcp", legacy, Side::Client).unwrap();
        assert_eq!(mcp.wire(), "http-legacy-sse");
        let why = target("http://localhost:1/", "mcp-2026", streamable, Side::Server).unwrap_err();
        assert!(why.contains("does not carry the dialect mcp-2026"), "{why}");
    }

    #[test]
    fn a_flag_that_does_not_belong_to_the_endpoint_is_refused() {
        let file = || Some(PathBuf::from("x.pem"));
        let framing = || Flags { framing: Some("newline".to_owned()), ..Flags::default() };
        let binding = || Flags { binding: Some(HttpBinding::Acp), ..Flags::default() };
        let authority = || Flags { tls_ca: file(), ..Flags::default() };
        let client_authority = || Flags { client_ca: file(), ..Flags::default() };
        let half = || Flags { tls_cert: file(), ..Flags::default() };
        for (text, flags, word) in [
            ("ws://localhost:1/", framing(), "--framing is for byte streams"),
            ("http://localhost:1/", framing(), "--framing is for byte streams"),
            ("ws://localhost:1/", binding(), "--binding is for http"),
            ("pipe:agent", binding(), "--binding is for http"),
            ("ws://localhost:1/", authority(), "--tls-ca is for wss"),
            ("ws://localhost:1/", client_authority(), "--client-ca is for wss"),
            ("stdio", client_authority(), "--client-ca is for wss"),
            ("stdio", half(), "--tls-cert and --tls-key are for wss"),
            ("wss://localhost:1/", half(), "--tls-cert needs --tls-key"),
            ("wss://localhost:1/", Flags::default(), "needs --tls-cert FILE"),
        ] {
            let why = target(text, "acp", flags, Side::Server).unwrap_err();
            assert!(why.contains(word), "{text}: {why}");
        }
        let why = target("https://localhost:1/", "acp", half(), Side::Client).unwrap_err();
        assert!(why.contains("--tls-cert needs --tls-key"), "{why}");
        let whole = || Flags { tls_key: file(), ..half() };
        assert!(target("https://localhost:1/", "acp", whole(), Side::Client).is_ok());
        assert!(target("wss://localhost:1/", "acp", authority(), Side::Client).is_ok());
        assert!(target("https://localhost:1/", "acp", Flags::default(), Side::Client).is_ok());
    }
}
