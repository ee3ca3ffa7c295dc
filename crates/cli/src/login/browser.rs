//! The browser of a login, and the address on this machine to which the authorization server redirects it.

use std::convert::Infallible;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http::header::{CACHE_CONTROL, CONTENT_TYPE, REFERRER_POLICY};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use oauth2::url::{Url, form_urlencoded};
use rescind::LogText;
use subtle::ConstantTimeEq as _;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use crate::login::discovery::error_code;

/// The path of the redirect.
const PATH: &str = "/callback";
/// The most connections at once. A browser opens a few.
const MAX_CONNECTIONS: usize = 32;
/// How long a connection to the redirect may take.
const CONNECTION_TIME: Duration = Duration::from_secs(10);
/// The most bytes of the head of a request.
const MAX_HEAD: usize = 64 * 1024;
/// A command that still runs after this time is a browser.
const BROWSER_TIME: Duration = Duration::from_secs(3);

/// The address to which the browser is redirected.
pub(super) struct Redirect {
    listener: TcpListener,
    port: u16,
}

/// What a redirect must have.
pub(super) struct Expected {
    pub(super) state: String,
    pub(super) issuer: String,
    /// Whether it must name the issuer.
    pub(super) names_issuer: bool,
}

type Outcome = Result<String, String>;

/// The login that the redirects are for, until one has come.
struct Waiting {
    expected: Expected,
    outcome: Mutex<Option<oneshot::Sender<Outcome>>>,
}

impl Redirect {
    /// Listens on this port of this machine, or on a free one for 0.
    ///
    /// # Errors
    /// The reason why it cannot, in one sentence.
    pub(super) async fn listen(port: u16) -> Result<Self, String> {
        let listening = async {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await?;
            let port = listener.local_addr()?.port();
            Ok::<_, std::io::Error>(Self { listener, port })
        };
        listening
            .await
            .map_err(|error| format!("no redirect of a login can be received on port {port}: {error}"))
    }

    pub(super) const fn port(&self) -> u16 {
        self.port
    }

    /// Its URL.
    pub(super) fn url(&self) -> Result<Url, String> {
        let text = format!("http://{}:{}{PATH}", Ipv4Addr::LOCALHOST, self.port);
        Url::parse(&text).map_err(|error| error.to_string())
    }

    /// Waits for the redirect of this login, and returns its code. Others are refused, and do not end the wait.
    ///
    /// # Errors
    /// Why the authorization server gives no code, or that the redirect is not its own.
    pub(super) async fn code(self, expected: Expected) -> Outcome {
        let (sender, mut outcome) = oneshot::channel();
        let waiting = Arc::new(Waiting { expected, outcome: Mutex::new(Some(sender)) });
        let mut connections = JoinSet::new();
        let outcome = loop {
            let has_room = connections.len() < MAX_CONNECTIONS;
            tokio::select! {
                outcome = &mut outcome => break outcome,
                Some(_) = connections.join_next() => {}
                accepted = self.listener.accept(), if has_room => {
                    let Ok((stream, _)) = accepted else { continue };
                    let served = serve(stream, Arc::clone(&waiting));
                    connections.spawn(tokio::time::timeout(CONNECTION_TIME, served));
                }
            }
        };
        // The browser reads its answer, and no further redirect is received.
        drop(self.listener);
        tokio::spawn(async move { while connections.join_next().await.is_some() {} });
        outcome.unwrap_or_else(|_| Err("the login has ended".to_owned()))
    }
}

async fn serve(stream: TcpStream, waiting: Arc<Waiting>) {
    let service = service_fn(move |request: Request<Incoming>| {
        let answer = waiting.answer(&request);
        std::future::ready(Ok::<_, Infallible>(answer))
    });
    let mut http = hyper::server::conn::http1::Builder::new();
    let served =
        http.keep_alive(false).max_buf_size(MAX_HEAD).serve_connection(TokioIo::new(stream), service);
    if let Err(error) = served.await {
        tracing::debug!(%error, "a connection to the redirect of a login failed");
    }
}

impl Waiting {
    fn answer(&self, request: &Request<Incoming>) -> Response<Full<Bytes>> {
        if request.method() != Method::GET || request.uri().path() != PATH {
            return page(StatusCode::NOT_FOUND, "There is nothing here.");
        }
        match self.expected.read(request.uri().query().unwrap_or_default()) {
            None => page(StatusCode::BAD_REQUEST, "This is not the login that Rescind waits for."),
            Some(outcome) => {
                let text = match &outcome {
                    Ok(_) => "Rescind has received the login. You can close this page.",
                    Err(_) => "The login has failed. Rescind shows the reason.",
                };
                let sender = self.outcome.lock().unwrap_or_else(PoisonError::into_inner).take();
                match sender.map(|sender| sender.send(outcome)) {
                    Some(Ok(())) => page(StatusCode::OK, text),
                    Some(Err(_)) | None => page(StatusCode::GONE, "This login has been used already."),
                }
            }
        }
    }
}

impl Expected {
    /// What this query says. `None`: it is not about this login.
    fn read(&self, query: &str) -> Option<Outcome> {
        let values = |name: &str| {
            let pairs = form_urlencoded::parse(query.as_bytes()).filter(|(key, _)| key == name);
            let mut values: Vec<String> = pairs.map(|(_, value)| value.into_owned()).collect();
            if values.len() > 1 { Err(()) } else { Ok(values.pop()) }
        };
        let (Ok(Some(state)), Ok(issuer)) = (values("state"), values("iss")) else { return None };
        if !bool::from(state.as_bytes().ct_eq(self.state.as_bytes())) {
            return None;
        }
        // Before anything else of the answer is used (RFC 9207).
        match issuer {
            Some(issuer) if issuer != self.issuer => {
                let other = LogText::text(issuer);
                return Some(Err(format!("the redirect comes from another issuer: {other}")));
            }
            None if self.names_issuer => {
                return Some(Err("the redirect does not name its issuer".to_owned()));
            }
            Some(_) | None => {}
        }
        if let Ok(Some(code)) = values("error") {
            return Some(Err(format!("the authorization server refused the login: {}", error_code(&code))));
        }
        match values("code") {
            Ok(Some(code)) if !code.is_empty() => Some(Ok(code)),
            _ => Some(Err("the redirect has no code".to_owned())),
        }
    }
}

fn page(status: StatusCode, text: &'static str) -> Response<Full<Bytes>> {
    let body = format!("<!doctype html><meta charset=utf-8><title>Rescind</title><p>{text}</p>\n");
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    response
}

/// Opens the URL in a browser: by this command, else by those of `BROWSER`, else by that of the system. Returns whether one
/// was opened.
pub(super) async fn open(command: Option<&str>, url: &Url) -> bool {
    let variable = std::env::var("BROWSER").ok().filter(|text| !text.trim().is_empty());
    let commands = match (command, variable) {
        (Some("none"), _) => Vec::new(),
        (Some(command), _) => vec![with_words(command, url)],
        // A list, as in $PATH.
        (None, Some(list)) => list.split(':').map(|command| with_words(command, url)).collect(),
        (None, None) => open::commands(url.as_str()),
    };
    for mut command in commands {
        let command = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let Ok(child) = command.spawn() else { continue };
        if is_opened(child).await {
            return true;
        }
    }
    false
}

/// A command with arguments between spaces, of which `%s` is the URL; else the URL is the last one.
fn with_words(text: &str, url: &Url) -> Command {
    let mut words = text.split_ascii_whitespace();
    if Path::new(text).is_file() {
        words = "".split_ascii_whitespace();
    }
    let mut command = Command::new(words.next().unwrap_or(text));
    let mut is_named = false;
    for word in words {
        is_named |= word == "%s";
        command.arg(if word == "%s" { url.as_str() } else { word });
    }
    if !is_named {
        command.arg(url.as_str());
    }
    command
}

/// Whether the command has opened a browser, or is one.
async fn is_opened(mut child: Child) -> bool {
    let ended = tokio::task::spawn_blocking(move || child.wait());
    match tokio::time::timeout(BROWSER_TIME, ended).await {
        Ok(Ok(Ok(status))) => status.success(),
        Ok(Ok(Err(_)) | Err(_)) => false,
        Err(_) => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(names_issuer: bool, query: &str) -> Option<Outcome> {
        let (state, issuer) = ("s t".to_owned(), "https://as".to_owned());
        Expected { state, issuer, names_issuer }.read(query)
    }

    #[test]
    fn a_redirect_of_another_login_is_not_read() {
        for query in [
            "",
            "code=c",
            "state=&code=c",
            "state=s&code=c",
            "state=s+t&state=s+t&code=c",
            "state=x&error=e",
            "%",
        ] {
            assert_eq!(read(false, query), None, "{query}");
        }
    }

    #[test]
    fn a_redirect_has_one_code_and_the_issuer_of_the_login() {
        assert_eq!(read(false, "code=a%2Bb&state=s+t"), Some(Ok("a+b".to_owned())));
        assert_eq!(read(true, "code=c&state=s%20t&iss=https%3A%2F%2Fas"), Some(Ok("c".to_owned())));
        for (names_issuer, query, word) in [
            (true, "state=s+t&code=c", "does not name"),
            (false, "state=s+t&code=c&iss=https%3A%2F%2Fas%2F", "another issuer"),
            (false, "state=s+t&error=e&iss=x", "another issuer"),
            (
                false,
                "state=s+t&error=access_denied&error_description=secret",
                "refused the login: access_denied",
            ),
            (false, "state=s+t&error=%3Cscript%3E", "an unknown error"),
            (false, "state=s+t&code=", "no code"),
            (false, "state=s+t&code=a&code=b", "no code"),
        ] {
            let why = read(names_issuer, query).and_then(Result::err).unwrap_or_default();
            assert!(why.contains(word) && !why.contains("secret"), "{query}: {why}");
        }
    }

    #[test]
    fn a_command_of_a_browser_has_the_url_where_it_says() {
        let url = Url::parse("https://as/a?b").unwrap();
        let shown = |text: &str| {
            let command = with_words(text, &url);
            let words = std::iter::once(command.get_program()).chain(command.get_args());
            words.map(|word| word.to_str().unwrap().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(shown("firefox"), ["firefox", "https://as/a?b"]);
        assert_eq!(shown("firefox --new %s -x"), ["firefox", "--new", "https://as/a?b", "-x"]);
    }
}
