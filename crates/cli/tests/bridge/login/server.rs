//! An MCP server with an authorization server of its own, as the RFCs say, or with one thing wrong.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::body::{Body, to_bytes};
use axum::http::{Method, Request, Response, StatusCode};
use bytes::Bytes;
use oauth2::url::{Url, form_urlencoded};
use oauth2::{PkceCodeChallenge, PkceCodeVerifier};
use serde_json::{Value, json};
use tokio::sync::watch;

/// What the authorization server, or the MCP server, does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wrong {
    Nothing,
    /// Its metadata name another issuer.
    OtherIssuer,
    /// Its token endpoint is of another origin.
    TokenElsewhere,
    /// Its authorization endpoint is on http, and not on this machine.
    PlainHttp,
    NoPkce,
    /// The metadata of the MCP server are those of another one.
    OtherResource,
    /// They are at another origin.
    MetadataElsewhere,
    /// The redirect names another issuer.
    RedirectOfOtherIssuer,
    /// The redirect has a state of its own.
    OtherState,
    EndlessMetadata,
    EndlessToken,
    /// The answer to a token request never comes.
    SilentToken,
    /// A token request is redirected to another server.
    RedirectedToken,
    /// An error repeats all that was sent.
    Repeats,
    /// The MCP server accepts no token.
    AcceptsNoToken,
}

/// A server that runs until it is dropped.
pub(super) struct Server {
    pub(super) url: String,
    site: Arc<Site>,
    serving: tokio::task::JoinHandle<()>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

struct Site {
    origin: String,
    wrong: Wrong,
    /// The life of a token in seconds.
    expires_in: Option<u64>,
    state: Mutex<State>,
    counts: watch::Sender<Counts>,
}

#[derive(Default)]
struct State {
    next: u64,
    clients: HashMap<String, String>,
    codes: HashMap<String, Granted>,
    access: HashMap<String, (Option<Instant>, String)>,
    refresh: Option<(String, String)>,
    used_refresh: HashSet<String>,
    calls: HashMap<u64, usize>,
    secrets: Vec<String>,
}

struct Granted {
    challenge: String,
    redirect: String,
    scope: String,
}

/// What was asked of the server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) registered: usize,
    pub(super) authorized: usize,
    pub(super) exchanged: usize,
    pub(super) refreshed: usize,
    pub(super) revoked: usize,
    pub(super) refused: usize,
    /// Token requests that a client of the RFCs does not send.
    pub(super) faults: Vec<String>,
    pub(super) calls: usize,
}

impl Server {
    pub(super) async fn start(wrong: Wrong, expires_in: Option<u64>) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let origin = format!("http://{}", listener.local_addr().unwrap());
        let site = Arc::new(Site {
            origin: origin.clone(),
            wrong,
            expires_in,
            state: Mutex::default(),
            counts: watch::Sender::default(),
        });
        let shared = Arc::clone(&site);
        let app = axum::Router::new().fallback(move |request: Request<Body>| {
            let site = Arc::clone(&shared);
            async move { site.answer(request).await }
        });
        let serving = tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        Self { url: format!("{origin}/tools/mcp"), site, serving }
    }

    pub(super) fn counts(&self) -> Counts {
        self.site.counts.borrow().clone()
    }

    pub(super) async fn until(&self, holds: impl Fn(&Counts) -> bool) {
        let mut counts = self.site.counts.subscribe();
        super::soon("what the server waits for", counts.wait_for(|counts| holds(counts))).await.unwrap();
    }

    /// Ends all access tokens.
    pub(super) fn end_tokens(&self) {
        self.site.state.lock().unwrap().access.clear();
    }

    /// Ends all refresh tokens too.
    pub(super) fn end_logins(&self) {
        let mut state = self.site.state.lock().unwrap();
        state.access.clear();
        state.refresh = None;
    }

    /// How often each call has run, by its number.
    pub(super) fn calls(&self) -> HashMap<u64, usize> {
        self.site.state.lock().unwrap().calls.clone()
    }

    /// All codes, tokens and verifiers that there were.
    pub(super) fn secrets(&self) -> Vec<String> {
        self.site.state.lock().unwrap().secrets.clone()
    }
}

type Answer = Response<Body>;

impl Site {
    fn count(&self, change: impl FnOnce(&mut Counts)) {
        self.counts.send_modify(change);
    }

    fn issuer(&self) -> String {
        format!("{}/as", self.origin)
    }

    async fn answer(&self, request: Request<Body>) -> Answer {
        let (head, body) = request.into_parts();
        let body = to_bytes(body, 1 << 20).await.unwrap_or_default();
        let query = head.uri.query().unwrap_or_default().to_owned();
        match (&head.method, head.uri.path()) {
            (_, "/tools/mcp") => {
                let token = head.headers.get("authorization").map(|value| value.to_str().unwrap());
                self.mcp(&head.method, token, &body)
            }
            (&Method::GET, "/.well-known/oauth-protected-resource/tools/mcp") => self.resource_metadata(),
            (&Method::GET, "/.well-known/oauth-authorization-server/as") => self.issuer_metadata(),
            (&Method::POST, "/as/register") => self.register(&body),
            (&Method::GET, "/as/authorize") => self.authorize(&query),
            (&Method::POST, "/as/token") => self.token(&body),
            (&Method::POST, "/as/revoke") => {
                self.count(|counts| counts.revoked += 1);
                answer(StatusCode::OK, &json!({}))
            }
            (&Method::POST, path) => {
                self.count(|counts| counts.faults.push(path.to_owned()));
                answer(StatusCode::NOT_FOUND, &json!({}))
            }
            _ => answer(StatusCode::NOT_FOUND, &json!({})),
        }
    }

    fn mcp(&self, method: &Method, token: Option<&str>, body: &Bytes) -> Answer {
        let now = Instant::now();
        let known = token.and_then(|value| value.strip_prefix("Bearer ")).and_then(|token| {
            let state = self.state.lock().unwrap();
            let (end, scope) = state.access.get(token)?.clone();
            (end.is_none_or(|end| end > now) && self.wrong != Wrong::AcceptsNoToken).then_some(scope)
        });
        let Some(scope) = known else {
            self.count(|counts| counts.refused += 1);
            let metadata = match self.wrong {
                Wrong::MetadataElsewhere => "http://localhost:9/metadata".to_owned(),
                _ => format!("{}/.well-known/oauth-protected-resource/tools/mcp", self.origin),
            };
            let challenge =
                format!("Bearer error=\"invalid_token\", resource_metadata=\"{metadata}\", scope=\"read\"");
            return Response::builder()
                .status(StatusCode::UNAUTHORIZED)
                .header("www-authenticate", challenge)
                // Some servers repeat the token.
                .body(format!("who are you, {}", token.unwrap_or_default()).into())
                .unwrap();
        };
        if method == Method::DELETE {
            return answer(StatusCode::OK, &json!({}));
        }
        let message: Value = serde_json::from_slice(body).unwrap_or_default();
        let result = match message["method"].as_str() {
            Some("initialize") => json!({
                "protocolVersion": "2025-11-25", "capabilities": {"tools": {}},
                "serverInfo": {"name": "protected", "version": "1"}
            }),
            Some("tools/call") if message["params"]["name"] == "write" && !scope.contains("write") => {
                return Response::builder()
                    .status(StatusCode::FORBIDDEN)
                    .header("www-authenticate", "Bearer error=\"insufficient_scope\", scope=\"write\"")
                    .body(Body::empty())
                    .unwrap();
            }
            Some("tools/call") => {
                let number = message["params"]["arguments"]["number"].as_u64().unwrap();
                *self.state.lock().unwrap().calls.entry(number).or_default() += 1;
                self.count(|counts| counts.calls += 1);
                json!({"content": [], "structuredContent": {"number": number}})
            }
            _ if method == Method::POST => return answer(StatusCode::ACCEPTED, &Value::Null),
            _ => return answer(StatusCode::METHOD_NOT_ALLOWED, &json!({})),
        };
        answer(StatusCode::OK, &json!({"jsonrpc": "2.0", "id": message["id"], "result": result}))
    }

    fn resource_metadata(&self) -> Answer {
        let resource = match self.wrong {
            Wrong::OtherResource => "https://other.example/mcp".to_owned(),
            _ => format!("{}/tools/mcp", self.origin),
        };
        answer(StatusCode::OK, &json!({"resource": resource, "authorization_servers": [self.issuer()]}))
    }

    fn issuer_metadata(&self) -> Answer {
        let issuer = self.issuer();
        let mut metadata = json!({
            "issuer": issuer, "authorization_endpoint": format!("{issuer}/authorize"),
            "token_endpoint": format!("{issuer}/token"), "registration_endpoint": format!("{issuer}/register"),
            "revocation_endpoint": format!("{issuer}/revoke"), "code_challenge_methods_supported": ["S256"],
            "authorization_response_iss_parameter_supported": self.wrong == Wrong::RedirectOfOtherIssuer
        });
        match self.wrong {
            Wrong::OtherIssuer => metadata["issuer"] = "https://other.example".into(),
            Wrong::TokenElsewhere => metadata["token_endpoint"] = "http://localhost:9/token".into(),
            Wrong::PlainHttp => metadata["authorization_endpoint"] = "http://as.example/authorize".into(),
            Wrong::NoPkce => metadata["code_challenge_methods_supported"] = json!(["plain"]),
            Wrong::EndlessMetadata => return endless(),
            _ => {}
        }
        answer(StatusCode::OK, &metadata)
    }

    fn register(&self, body: &Bytes) -> Answer {
        let asked: Value = serde_json::from_slice(body).unwrap();
        let redirect = asked["redirect_uris"][0].as_str().unwrap().to_owned();
        let id = self.fresh("client");
        self.state.lock().unwrap().clients.insert(id.clone(), redirect);
        self.count(|counts| counts.registered += 1);
        answer(StatusCode::CREATED, &json!({"client_id": id, "token_endpoint_auth_method": "none"}))
    }

    /// As if the user had agreed at once.
    fn authorize(&self, query: &str) -> Answer {
        let asked: HashMap<String, String> = form_urlencoded::parse(query.as_bytes()).into_owned().collect();
        let code = self.fresh("code");
        let mut state = self.state.lock().unwrap();
        let known = state.clients.get(&asked["client_id"]).cloned();
        let is_right = known.is_none_or(|redirect| redirect == asked["redirect_uri"])
            && asked["response_type"] == "code"
            && asked["code_challenge_method"] == "S256"
            && asked["resource"] == format!("{}/tools/mcp", self.origin);
        if !is_right {
            drop(state);
            self.count(|counts| counts.faults.push(format!("{asked:?}")));
            return answer(StatusCode::BAD_REQUEST, &json!({"error": "invalid_request"}));
        }
        let (challenge, redirect) = (asked["code_challenge"].clone(), asked["redirect_uri"].clone());
        let granted = Granted { challenge, redirect: redirect.clone(), scope: asked["scope"].clone() };
        state.codes.insert(code.clone(), granted);
        state.secrets.push(code.clone());
        drop(state);
        self.count(|counts| counts.authorized += 1);
        let mut to = Url::parse(&redirect).unwrap();
        let sent = if self.wrong == Wrong::OtherState { "another" } else { &asked["state"] };
        to.query_pairs_mut().append_pair("code", &code).append_pair("state", sent);
        if self.wrong == Wrong::RedirectOfOtherIssuer {
            to.query_pairs_mut().append_pair("iss", "https://other.example");
        }
        Response::builder()
            .status(StatusCode::FOUND)
            .header("location", to.as_str())
            .body(Body::empty())
            .unwrap()
    }

    fn token(&self, body: &Bytes) -> Answer {
        let asked: HashMap<String, String> = form_urlencoded::parse(body).into_owned().collect();
        match self.wrong {
            Wrong::EndlessToken => return endless(),
            Wrong::RedirectedToken => {
                let response = Response::builder().status(StatusCode::TEMPORARY_REDIRECT);
                let to = format!("{}/elsewhere", self.origin);
                return response.header("location", to).body(Body::empty()).unwrap();
            }
            Wrong::SilentToken => {
                let stream = futures_util::stream::pending::<Result<Bytes, std::io::Error>>();
                return Response::new(Body::from_stream(stream));
            }
            Wrong::Repeats => {
                let text = String::from_utf8_lossy(body).into_owned();
                self.state.lock().unwrap().secrets.push(asked["code_verifier"].clone());
                let repeated = json!({"error": text, "error_description": text});
                return answer(StatusCode::BAD_REQUEST, &repeated);
            }
            _ => {}
        }
        let refuse = |why: &str| {
            self.count(|counts| counts.faults.push(why.to_owned()));
            answer(StatusCode::BAD_REQUEST, &json!({"error": "invalid_grant"}))
        };
        if asked.get("resource") != Some(&format!("{}/tools/mcp", self.origin)) {
            return refuse("resource");
        }
        let (access, refresh) = (self.fresh("access"), self.fresh("refresh"));
        let mut state = self.state.lock().unwrap();
        let scope = if asked["grant_type"] == "authorization_code" {
            state.secrets.push(asked["code_verifier"].clone());
            let verifier = PkceCodeVerifier::new(asked["code_verifier"].clone());
            let challenge = PkceCodeChallenge::from_code_verifier_sha256(&verifier);
            let granted = state.codes.remove(&asked["code"]).filter(|granted| {
                granted.challenge == challenge.as_str() && granted.redirect == asked["redirect_uri"]
            });
            let Some(granted) = granted else {
                drop(state);
                return refuse("code");
            };
            self.count(|counts| counts.exchanged += 1);
            granted.scope
        } else {
            let token = &asked["refresh_token"];
            let is_reused = state.used_refresh.contains(token);
            let Some((_, scope)) = state.refresh.take().filter(|(own, _)| own == token) else {
                drop(state);
                if is_reused {
                    return refuse("a refresh token twice");
                }
                return answer(StatusCode::BAD_REQUEST, &json!({"error": "invalid_grant"}));
            };
            state.used_refresh.insert(token.clone());
            self.count(|counts| counts.refreshed += 1);
            scope
        };
        let end = self.expires_in.map(|time| Instant::now() + Duration::from_secs(time));
        state.access.insert(access.clone(), (end, scope.clone()));
        state.refresh = Some((refresh.clone(), scope.clone()));
        state.secrets.extend([access.clone(), refresh.clone()]);
        let mut token = json!({
            "access_token": access, "token_type": "bearer", "refresh_token": refresh, "scope": scope
        });
        if let Some(time) = self.expires_in {
            token["expires_in"] = time.into();
        }
        answer(StatusCode::OK, &token)
    }

    fn fresh(&self, kind: &str) -> String {
        let mut bits = [0; 16];
        getrandom::fill(&mut bits).unwrap();
        let mut state = self.state.lock().unwrap();
        state.next += 1;
        format!("{kind}-{}-{:032x}", state.next, u128::from_ne_bytes(bits))
    }
}

fn answer(status: StatusCode, body: &Value) -> Answer {
    let response = Response::builder().status(status);
    if body.is_null() {
        return response.body(Body::empty()).unwrap();
    }
    response.header("content-type", "application/json").body(body.to_string().into()).unwrap()
}

fn endless() -> Answer {
    let stream =
        futures_util::stream::repeat_with(|| Ok::<_, std::io::Error>(Bytes::from_static(&[b' '; 4096])));
    let response = Response::builder().header("content-type", "application/json");
    response.body(Body::from_stream(stream)).unwrap()
}
