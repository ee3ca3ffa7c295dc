//! Where a server sends its clients to log in: its challenge (RFC 6750), its metadata (RFC 9728), those of its
//! authorization server (RFC 8414 and `OpenID` Connect Discovery), and the registration there (RFC 7591).
//!
//! A server may lie about all of it, so an address is used only if it is `https`, or `http` on this machine for a server on
//! this machine; the metadata must be those of the server and of the issuer that were asked for; and the endpoints must be
//! of the issuer's origin, unless the issuer names itself in the redirect (RFC 9207). Otherwise a server could send the
//! code of an honest issuer to another address.

use std::net::IpAddr;

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE, WWW_AUTHENTICATE};
use http::{HeaderMap, Method, Request, Response, StatusCode};
use oauth2::url::{Host, Url};
use rescind::LogText;
use rescind::http::HttpClient;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::json;

use crate::login::{STEP_TIME, store::Client};

/// The most bytes of a document or a token response.
const MAX_DOCUMENT: usize = 256 * 1024;
const JSON: &str = "application/json";
/// The scope that asks for a refresh token, where an authorization server has it.
const OFFLINE: &str = "offline_access";

/// What a server says with a 401 or 403.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Challenge {
    /// The address of the server's metadata.
    metadata: Option<String>,
    pub(super) scopes: Option<Vec<String>>,
    /// The token is valid, and its scopes are not enough.
    pub(super) wants_scopes: bool,
}

impl Challenge {
    /// That of a response.
    pub(super) fn of(status: StatusCode, headers: &HeaderMap) -> Self {
        let values = headers.get_all(WWW_AUTHENTICATE).iter();
        let values: Vec<_> =
            values.map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned()).collect();
        Self::read(&values, status.as_u16())
    }

    /// Reads the values of `WWW-Authenticate` of a response with this status.
    pub(super) fn read(values: &[String], status: u16) -> Self {
        let read = values.iter().filter_map(|value| http_auth::parse_challenges(value).ok());
        let read: Vec<_> = read.flatten().filter(|one| one.scheme.eq_ignore_ascii_case("bearer")).collect();
        let param = |name: &str| {
            let named = read.iter().flat_map(|one| &one.params);
            let mut named = named.filter(|(key, _)| key.eq_ignore_ascii_case(name));
            named.next().map(|(_, value)| value.to_unescaped())
        };
        Self {
            metadata: param("resource_metadata"),
            scopes: param("scope").map(|scopes| words(&scopes)).filter(|scopes| !scopes.is_empty()),
            wants_scopes: status == StatusCode::FORBIDDEN.as_u16(),
        }
    }
}

fn words(text: &str) -> Vec<String> {
    text.split_ascii_whitespace().map(str::to_owned).collect()
}

/// The metadata of a protected server.
#[derive(Deserialize)]
struct ServerMetadata {
    resource: String,
    #[serde(default)]
    authorization_servers: Vec<String>,
    scopes_supported: Option<Vec<String>>,
}

/// The metadata of an authorization server.
#[derive(Deserialize)]
struct IssuerMetadata {
    issuer: String,
    authorization_endpoint: String,
    token_endpoint: String,
    registration_endpoint: Option<String>,
    revocation_endpoint: Option<String>,
    scopes_supported: Option<Vec<String>>,
    code_challenge_methods_supported: Option<Vec<String>>,
    token_endpoint_auth_methods_supported: Option<Vec<String>>,
    #[serde(default)]
    authorization_response_iss_parameter_supported: bool,
}

/// Where to log in, all of it checked.
#[derive(Debug)]
pub(super) struct Issuer {
    /// As the metadata write it, to be compared with.
    pub(super) name: String,
    pub(super) authorization: Url,
    pub(super) token: Url,
    registration: Option<Url>,
    pub(super) revocation: Option<Url>,
    /// Whether the redirect must name the issuer.
    pub(super) names_itself: bool,
    auth_methods: Option<Vec<String>>,
    /// The server, as the token is meant for it.
    pub(super) resource: String,
    /// What to ask for.
    pub(super) scopes: Vec<String>,
}

impl Issuer {
    /// Finds the authorization server of the server at this address. `None`: the server names none, so it has no login.
    ///
    /// # Errors
    /// What is wrong with a document, in one sentence.
    pub(super) async fn find(
        client: &HttpClient,
        server: &Url,
        challenge: &Challenge,
    ) -> Result<Option<Self>, String> {
        let Some(metadata) = server_metadata(client, server, challenge).await? else { return Ok(None) };
        if !covers(&metadata.resource, server) {
            let other = LogText::text(&metadata.resource);
            return Err(format!("its metadata are those of another server: {other}"));
        }
        let Some(name) = metadata.authorization_servers.first() else {
            return Err("its metadata name no authorization server".to_owned());
        };
        let issuer = address(name, server, "the authorization server")?;
        let mut found = Err(format!("{} has no metadata", LogText::text(name)));
        for url in issuer_metadata_urls(&issuer) {
            match document::<IssuerMetadata>(client, &url).await {
                Ok(None) => {}
                Ok(Some(metadata)) => {
                    found = Ok(metadata);
                    break;
                }
                Err(why) => found = Err(why),
            }
        }
        let resource = metadata.resource;
        let mut scopes = challenge.scopes.clone().or(metadata.scopes_supported).unwrap_or_default();
        let metadata = found?;
        let offline = metadata.scopes_supported.iter().flatten().any(|scope| scope == OFFLINE);
        // Alone it would replace the scopes that the authorization server has by default.
        if offline && !scopes.is_empty() && !scopes.iter().any(|scope| scope == OFFLINE) {
            scopes.push(OFFLINE.to_owned());
        }
        Self::checked(metadata, name, server, resource, scopes).map(Some)
    }

    fn checked(
        metadata: IssuerMetadata,
        name: &str,
        server: &Url,
        resource: String,
        scopes: Vec<String>,
    ) -> Result<Self, String> {
        // Python's servers add a slash to an origin.
        if metadata.issuer.trim_end_matches('/') != name.trim_end_matches('/') {
            let (own, other) = (LogText::text(name), LogText::text(&metadata.issuer));
            return Err(format!("the metadata of {own} are those of another issuer: {other}"));
        }
        let methods = metadata.code_challenge_methods_supported.unwrap_or_default();
        if !methods.iter().any(|method| method == "S256") {
            return Err(format!("{} does not support PKCE with S256", LogText::text(name)));
        }
        let origin = address(name, server, "the authorization server")?.origin();
        let names_itself = metadata.authorization_response_iss_parameter_supported;
        let endpoint = |text: &str, what: &str| {
            let url = address(text, server, what)?;
            if url.origin() != origin && !names_itself {
                let (own, other) = (LogText::text(name), url.origin().ascii_serialization());
                return Err(format!(
                    "{what} of {own} is of another origin, {other}, and its redirects do not name the issuer"
                ));
            }
            Ok(url)
        };
        let optional = |text: Option<String>, what| text.map(|text| endpoint(&text, what)).transpose();
        Ok(Self {
            authorization: endpoint(&metadata.authorization_endpoint, "the authorization endpoint")?,
            token: endpoint(&metadata.token_endpoint, "the token endpoint")?,
            registration: optional(metadata.registration_endpoint, "the registration endpoint")?,
            revocation: optional(metadata.revocation_endpoint, "the revocation endpoint")?,
            names_itself,
            auth_methods: metadata.token_endpoint_auth_methods_supported,
            name: metadata.issuer,
            resource,
            scopes,
        })
    }

    /// Whether a client with a secret sends it in the body of a token request, instead of a header.
    pub(super) fn takes_secret_in_body(&self) -> bool {
        self.auth_methods.as_ref().is_some_and(|methods| {
            let has = |name: &str| methods.iter().any(|method| method == name);
            !has("client_secret_basic") && has("client_secret_post")
        })
    }

    /// Registers this program with this address of its redirect.
    ///
    /// # Errors
    /// Why it cannot be registered, in one sentence.
    pub(super) async fn register(
        &self,
        client: &HttpClient,
        redirect: &Url,
        port: u16,
    ) -> Result<Client, String> {
        #[derive(Deserialize)]
        struct Registered {
            client_id: String,
            client_secret: Option<String>,
            token_endpoint_auth_method: Option<String>,
        }

        let name = LogText::text(&self.name);
        let Some(url) = &self.registration else {
            return Err(format!(
                "{name} registers no clients: register one there for {redirect} and give its id with --client-id"
            ));
        };
        let body = json!({
            "client_name": "Rescind",
            "redirect_uris": [redirect],
            "grant_types": ["authorization_code", "refresh_token"],
            "response_types": ["code"],
            "token_endpoint_auth_method": "none",
            "application_type": "native",
        });
        let request = Request::builder().method(Method::POST).uri(url.as_str());
        let request = request.header(CONTENT_TYPE, JSON).header(ACCEPT, JSON);
        let request = request.body(Bytes::from(body.to_string())).map_err(|error| error.to_string())?;
        let response = fetch(client, request).await?;
        let status = response.status();
        if !status.is_success() {
            return Err(format!("{name} did not register the client: {status}{}", error_of(response.body())));
        }
        let Ok(registered) = serde_json::from_slice::<Registered>(response.body()) else {
            return Err(format!("{name} registered the client without an id"));
        };
        let in_body = registered.token_endpoint_auth_method.as_deref() == Some("client_secret_post");
        Ok(Client {
            id: registered.client_id,
            secret: registered.client_secret,
            secret_in_body: in_body,
            redirect_port: Some(port),
        })
    }
}

/// The error code of an OAuth response, which has no secrets. Descriptions may repeat what was sent.
fn error_of(body: &[u8]) -> String {
    let value: serde_json::Value = serde_json::from_slice(body).unwrap_or_default();
    let code = value.get("error").and_then(serde_json::Value::as_str);
    code.map(|code| format!(" ({})", error_code(code))).unwrap_or_default()
}

/// An error code as RFC 6749 defines it, or a remark that it is none.
pub(super) fn error_code(code: &str) -> &str {
    let is_code = code.len() <= 64 && code.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
    if is_code && !code.is_empty() { code } else { "an unknown error" }
}

async fn server_metadata(
    client: &HttpClient,
    server: &Url,
    challenge: &Challenge,
) -> Result<Option<ServerMetadata>, String> {
    if let Some(text) = &challenge.metadata {
        let url = address(text, server, "the address of its metadata")?;
        if url.origin() != server.origin() {
            return Err(format!("its metadata are at another origin: {}", LogText::text(text)));
        }
        let found = document(client, &url).await?;
        return found.map(Some).ok_or_else(|| format!("there are no metadata at {}", LogText::text(text)));
    }
    for url in server_metadata_urls(server) {
        // A server without a login may fail there. The reason for its 401 is better then.
        if let Ok(Some(found)) = document(client, &url).await {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

/// Where the metadata of a server are if its challenge does not say it, in the order in which to ask.
fn server_metadata_urls(server: &Url) -> Vec<Url> {
    well_known(
        server,
        &["/.well-known/oauth-protected-resource{path}", "/.well-known/oauth-protected-resource"],
    )
}

/// Where the metadata of an authorization server are, in the order in which to ask.
fn issuer_metadata_urls(issuer: &Url) -> Vec<Url> {
    well_known(
        issuer,
        &[
            "/.well-known/oauth-authorization-server{path}",
            "/.well-known/openid-configuration{path}",
            "{path}/.well-known/openid-configuration",
        ],
    )
}

fn well_known(base: &Url, forms: &[&str]) -> Vec<Url> {
    let path = base.path().trim_end_matches('/');
    let mut urls: Vec<Url> = Vec::new();
    for form in forms {
        let mut url = base.clone();
        url.set_query(None);
        url.set_path(&form.replace("{path}", path));
        if !urls.contains(&url) {
            urls.push(url);
        }
    }
    urls
}

/// Whether the metadata for this resource are about the server: it is the server, or a part of its origin with the server
/// in it.
fn covers(resource: &str, server: &Url) -> bool {
    let Ok(resource) = Url::parse(resource) else { return false };
    let (whole, path) = (resource.path().trim_end_matches('/'), server.path());
    let rest = path.strip_prefix(whole);
    resource.origin() == server.origin()
        && resource.fragment().is_none()
        && rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        && (resource.query().is_none() || resource.query() == server.query())
}

/// Reads an address that a server names.
fn address(text: &str, server: &Url, what: &str) -> Result<Url, String> {
    let shown = LogText::text(text);
    let url = Url::parse(text).map_err(|_| format!("{what} is not a URL: {shown}"))?;
    let has_more = !url.username().is_empty() || url.password().is_some() || url.fragment().is_some();
    let is_secure = url.scheme() == "https"
        || url.scheme() == "http" && is_loopback(&url) && server.scheme() == "http" && is_loopback(server);
    if !is_secure || has_more {
        return Err(format!("{what} is not an https address: {shown}"));
    }
    Ok(url)
}

fn is_loopback(url: &Url) -> bool {
    match url.host() {
        Some(Host::Domain(name)) => name.eq_ignore_ascii_case("localhost"),
        Some(Host::Ipv4(address)) => IpAddr::from(address).is_loopback(),
        Some(Host::Ipv6(address)) => IpAddr::from(address).is_loopback(),
        None => false,
    }
}

/// The document at this address. `None`: there is none.
async fn document<T: DeserializeOwned>(client: &HttpClient, url: &Url) -> Result<Option<T>, String> {
    let request = Request::builder().uri(url.as_str()).header(ACCEPT, JSON).body(Bytes::new());
    let response = fetch(client, request.map_err(|error| error.to_string())?).await?;
    if response.status().is_server_error() {
        return Err(format!("{url} answered with {}", response.status()));
    }
    // Some servers have a page at every address.
    Ok(serde_json::from_slice(response.body()).ok().filter(|_| response.status() == StatusCode::OK))
}

/// Sends a request of a login. It has a time limit.
pub(super) async fn fetch(client: &HttpClient, request: Request<Bytes>) -> Result<Response<Bytes>, String> {
    // A query may have secrets.
    let shown = request.uri().to_string();
    let shown = LogText::text(shown.split('?').next().unwrap_or_default()).to_string();
    match tokio::time::timeout(STEP_TIME, client.fetch(request, MAX_DOCUMENT)).await {
        Ok(fetched) => fetched.map_err(|error| format!("{shown} did not answer: {}", error.source)),
        Err(_) => Err(format!("{shown} did not answer within {} s", STEP_TIME.as_secs())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(text: &str) -> Url {
        Url::parse(text).unwrap_or_else(|why| panic!("{text}: {why}"))
    }

    fn challenge(values: &[&str]) -> Challenge {
        let values: Vec<_> = values.iter().map(|&value| value.to_owned()).collect();
        Challenge::read(&values, 401)
    }

    #[test]
    fn a_challenge_is_found_among_others_and_unescaped() {
        let found = challenge(&[
            r#"Basic realm="a, Bearer", bearer Scope="a  b", error="invalid_token",resource_metadata="https://h/\m""#,
        ]);
        assert_eq!(found.metadata.as_deref(), Some("https://h/m"));
        assert_eq!(found.scopes, Some(vec!["a".to_owned(), "b".to_owned()]));
        for none in [&[][..], &["Bearer"], &["Basic realm=\"x\""], &["Bearer scope=\"\""], &["\"", "=,="]] {
            assert_eq!(challenge(none), Challenge::default(), "{none:?}");
        }
        let second = challenge(&["=", "Negotiate", "Bearer resource_metadata=\"https://h/m\""]);
        assert_eq!(second.metadata.as_deref(), Some("https://h/m"));
    }

    #[test]
    fn metadata_are_asked_for_in_the_order_of_the_specification() {
        let texts = |urls: Vec<Url>| urls.into_iter().map(String::from).collect::<Vec<_>>();
        assert_eq!(
            texts(server_metadata_urls(&url("https://h/public/mcp?x=1"))),
            [
                "https://h/.well-known/oauth-protected-resource/public/mcp",
                "https://h/.well-known/oauth-protected-resource"
            ]
        );
        assert_eq!(
            texts(server_metadata_urls(&url("https://h/"))),
            ["https://h/.well-known/oauth-protected-resource"]
        );
        assert_eq!(
            texts(issuer_metadata_urls(&url("https://h:1/tenant1"))),
            [
                "https://h:1/.well-known/oauth-authorization-server/tenant1",
                "https://h:1/.well-known/openid-configuration/tenant1",
                "https://h:1/tenant1/.well-known/openid-configuration"
            ]
        );
        assert_eq!(
            texts(issuer_metadata_urls(&url("https://h"))),
            [
                "https://h/.well-known/oauth-authorization-server",
                "https://h/.well-known/openid-configuration"
            ]
        );
    }

    #[test]
    fn only_metadata_of_the_server_itself_are_taken() {
        let server = url("https://h/a/mcp?x=1");
        for own in [
            "https://h/a/mcp",
            "https://h",
            "https://h/",
            "https://h/a",
            "https://h:443/a/",
            "https://h/a/mcp?x=1",
        ] {
            assert!(covers(own, &server), "{own}");
        }
        for other in [
            "https://i/a/mcp",
            "http://h/a/mcp",
            "https://h:444/",
            "https://h/a/m",
            "https://h/b",
            "h",
            "https://h/a/mcp?x=2",
            "https://h/#a",
        ] {
            assert!(!covers(other, &server), "{other}");
        }
    }

    #[test]
    fn an_address_is_https_or_of_this_machine_for_a_server_of_this_machine() {
        let (far, near) = (url("https://h/mcp"), url("http://127.0.0.1:1/mcp"));
        for server in [&far, &near] {
            assert!(address("https://other/x?y", server, "it").is_ok());
            for wrong in [
                "http://h/",
                "ftp://h/",
                "x",
                "https://u@h/",
                "https://u:p@h/",
                "https://h/#x",
                "http://127.0.0.1.h/",
            ] {
                assert!(address(wrong, server, "it").is_err(), "{wrong}");
            }
        }
        for local in ["http://127.0.0.1/x", "http://localhost:2/", "http://[::1]:3/"] {
            assert!(address(local, &near, "it").is_ok() && address(local, &far, "it").is_err(), "{local}");
        }
    }

    #[test]
    fn metadata_of_an_issuer_are_checked() {
        let check = |change: serde_json::Value| {
            let mut metadata = json!({
                "issuer": "https://as", "authorization_endpoint": "https://as/a", "token_endpoint": "https://as/t",
                "code_challenge_methods_supported": ["plain", "S256"]
            });
            for (name, value) in change.as_object().unwrap() {
                metadata[name] = value.clone();
            }
            let metadata = serde_json::from_value(metadata).unwrap();
            Issuer::checked(
                metadata,
                "https://as/",
                &url("https://h/mcp"),
                "https://h/mcp".to_owned(),
                Vec::new(),
            )
        };
        assert!(check(json!({})).is_ok());
        for (change, word) in [
            (json!({"issuer": "https://evil"}), "another issuer"),
            (json!({"issuer": "https://as/tenant"}), "another issuer"),
            (json!({"code_challenge_methods_supported": ["plain"]}), "PKCE"),
            (json!({"code_challenge_methods_supported": null}), "PKCE"),
            (json!({"token_endpoint": "https://evil/t"}), "another origin"),
            (json!({"authorization_endpoint": "https://evil/a"}), "another origin"),
            (json!({"registration_endpoint": "https://evil/r"}), "another origin"),
            (json!({"token_endpoint": "http://as/t"}), "not an https address"),
        ] {
            let why = check(change.clone()).err().unwrap_or_default();
            assert!(why.contains(word), "{change}: {why}");
        }
        let named = json!({"token_endpoint": "https://other/t", "authorization_response_iss_parameter_supported": true});
        assert!(check(named).is_ok_and(|issuer| issuer.names_itself));
    }
}
