//! The login of a bridge at a server that wants one: OAuth with a browser, as MCP's authorization specifies it.
//!
//! A request that is refused waits for a [`Login`]. One task at a time renews it, and goes on if the request is cancelled:
//! a refresh token that was sent may be used up. Under the lock of the login's file the task takes the first of these:
//!
//! 1. a token that another bridge has stored meanwhile;
//! 2. a new token for the refresh token;
//! 3. a login of the user. If no browser can be opened, the requests that wait end with the address to open.
//!
//! A token is renewed before it ends too. Codes, tokens and verifiers are in no log, error or `Debug`.

mod browser;
mod discovery;
mod store;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use bytes::Bytes;
use clap::Args;
use http::header::CONTENT_TYPE;
use http::{Method, Request};
use oauth2::basic::{
    BasicClient, BasicErrorResponseType, BasicRequestTokenError, BasicTokenResponse, BasicTokenType,
};
use oauth2::url::{Url, form_urlencoded};
use oauth2::{
    AuthType, AuthUrl, AuthorizationCode, ClientId, ClientSecret, CsrfToken, EndpointNotSet, EndpointSet,
    HttpRequest, HttpResponse, PkceCodeChallenge, RedirectUrl, RefreshToken, RequestTokenError, Scope,
    TokenResponse as _, TokenUrl,
};
use rescind::http::{Authorization, CredentialRefusal, HttpClient};
use tokio::sync::watch;
use tokio::task::AbortHandle;

use crate::login::browser::{Expected, Redirect};
use crate::login::discovery::{Challenge, Issuer};
use crate::login::store::{Client, Lock, LoginFile, Stored};
use crate::output;

/// How long one request of a login may take.
const STEP_TIME: Duration = Duration::from_secs(10);
/// How long the user has to log in.
const USER_TIME: Duration = Duration::from_secs(600);
/// The user is not asked again for this time after a login. The server may refuse every token.
const USER_PAUSE: Duration = Duration::from_secs(30);
/// The time between two tries to take the lock that another process has.
const LOCK_AGAIN: Duration = Duration::from_millis(100);

/// The heading of these options in `--help`.
const LOGIN: &str = "Login at an http:// or https:// endpoint that wants OAuth";

/// How a bridge logs in at a server behind it that wants OAuth. Without `--to-token-file` it does so when an http:// or
/// https:// endpoint refuses a request.
#[derive(Clone, Debug, Args)]
#[group(skip)]
pub(crate) struct LoginArgs {
    /// The id of a client that is registered at the authorization server, or the https:// address of its metadata.
    /// [default: the bridge registers itself]
    #[arg(long, help_heading = LOGIN, value_name = "ID")]
    pub(crate) client_id: Option<String>,
    /// A file with the secret of that client, if it has one.
    #[arg(long, help_heading = LOGIN, value_name = "FILE", requires = "client_id")]
    pub(crate) client_secret_file: Option<PathBuf>,
    /// The port of http://127.0.0.1:PORT/callback, to which the login leads. [default: a free one]
    #[arg(long, help_heading = LOGIN, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) login_port: Option<u16>,
    /// The command that opens an address for the login, or `none`: then errors and stderr have it.
    /// [default: $BROWSER, else the system's]
    #[arg(long, help_heading = LOGIN, value_name = "COMMAND")]
    pub(crate) browser: Option<String>,
    /// Log in at ENDPOINT now, for the bridges to come, and exit.
    #[arg(long, help_heading = LOGIN, requires = "endpoint", conflicts_with = "logout")]
    pub(crate) login: bool,
    /// Forget the login at ENDPOINT, revoke it there if that is possible, and exit.
    #[arg(long, help_heading = LOGIN, requires = "endpoint")]
    pub(crate) logout: bool,
}

impl LoginArgs {
    /// Whether any is given.
    pub(crate) fn is_given(&self) -> bool {
        let Self { client_id, client_secret_file, login_port, browser, login, logout } = self;
        let has_client = client_id.is_some() || client_secret_file.is_some();
        has_client || login_port.is_some() || browser.is_some() || *login || *logout
    }
}

/// A login at a server. Clones are the same one.
#[derive(Clone)]
pub(crate) struct Login {
    shared: Arc<Shared>,
    authorization: Authorization,
    _renewing: Arc<Renewing>,
}

/// The task that renews the token before its end, until this is dropped.
struct Renewing(AbortHandle);

impl Drop for Renewing {
    fn drop(&mut self) {
        self.0.abort();
    }
}

struct Shared {
    server: Url,
    /// For the requests of a login: how to connect, and whom to trust.
    client: HttpClient,
    args: LoginArgs,
    /// Whether clients may see the address of a login.
    shows_address: bool,
    file: Option<LoginFile>,
    /// The login in use.
    current: watch::Sender<Option<Stored>>,
    /// The renewal that runs, or the last one.
    run: Mutex<Option<watch::Receiver<Progress>>>,
    /// When the user has logged in last.
    asked_user: Mutex<Option<Instant>>,
}

/// How far a renewal is.
#[derive(Clone)]
enum Progress {
    Running,
    /// The user must open this address.
    WaitsFor(String),
    /// Either there is a new token, or a login would not help.
    Ended(Result<(), String>),
}

/// Why a token is renewed.
#[derive(Clone)]
enum Why {
    Refused(Challenge),
    Ending,
}

impl Login {
    /// A login at this server: the stored one, or one that begins when the server refuses a request.
    ///
    /// # Errors
    /// The address of the server is not a URL.
    pub(crate) fn new(
        server: &str,
        client: HttpClient,
        args: &LoginArgs,
        shows_address: bool,
    ) -> Result<Self, String> {
        let server = Url::parse(server).map_err(|error| error.to_string())?;
        let file = LoginFile::of(server.as_str(), args.client_id.as_deref());
        let stored = file.as_ref().and_then(|file| file.read(server.as_str()));
        let shared = Arc::new(Shared {
            server,
            client,
            args: args.clone(),
            shows_address,
            file,
            current: watch::Sender::new(None),
            run: Mutex::default(),
            asked_user: Mutex::default(),
        });
        let of_hook = Arc::clone(&shared);
        let authorization = Authorization::unset().on_refusal(move |authorization, refusal| {
            let shared = Arc::clone(&of_hook);
            async move { shared.refused(&authorization, &refusal).await }
        });
        if let Some(stored) = stored {
            // A file that holds no valid header is as good as none.
            drop(shared.take(&authorization, stored));
        }
        let renewing = tokio::spawn(renew_in_time(Arc::downgrade(&shared), authorization.clone()));
        Ok(Self { shared, authorization, _renewing: Arc::new(Renewing(renewing.abort_handle())) })
    }

    /// Logs in now, or renews the token. Returns what it did, in one sentence.
    ///
    /// # Errors
    /// The reason why it cannot, in one sentence.
    pub(crate) async fn log_in(&self) -> Result<String, String> {
        let server = &self.shared.server;
        let request = Request::builder().uri(server.as_str()).body(Bytes::new());
        let request = request.map_err(|error| error.to_string())?;
        let asked = discovery::fetch(&self.shared.client, request).await?;
        let challenge = Challenge::of(asked.status(), asked.headers());
        let mut run = self.shared.renewal(&self.authorization, Why::Refused(challenge));
        match run.wait_for(|progress| matches!(progress, Progress::Ended(_))).await.as_deref() {
            Ok(Progress::Ended(Ok(()))) if self.shared.token().is_some() => {
                Ok(format!("there is a login at {server}"))
            }
            Ok(Progress::Ended(Ok(()))) => {
                Err(format!("{server} names no authorization server to log in at"))
            }
            // The reason was written when it ended.
            _ => Err(format!("there is no login at {server}")),
        }
    }

    /// The header of each request.
    pub(crate) const fn authorization(&self) -> &Authorization {
        &self.authorization
    }
}

/// Forgets the login at this server. Returns what it did, in one sentence.
///
/// # Errors
/// The reason why it cannot, in one sentence.
pub(crate) async fn log_out(server: &str, client: &HttpClient, args: &LoginArgs) -> Result<String, String> {
    let server = Url::parse(server).map_err(|error| error.to_string())?;
    let file = LoginFile::of(server.as_str(), args.client_id.as_deref()).ok_or_else(no_folder)?;
    let _lock = file.try_lock()?;
    let stored = file.read(server.as_str());
    if !file.delete()? {
        return Ok(format!("there was no login at {server}"));
    }
    let Some((stored, endpoint)) =
        stored.as_ref().and_then(|it| Some((it, it.revocation_endpoint.as_ref()?)))
    else {
        return Ok(format!("the login at {server} is deleted here; its server has no way to revoke it"));
    };
    let token = stored.refresh_token.as_ref().unwrap_or(&stored.access_token);
    let mut body = form_urlencoded::Serializer::new(String::new());
    body.append_pair("token", token).append_pair("client_id", &stored.client.id);
    if let Some(secret) = &stored.client.secret {
        body.append_pair("client_secret", secret);
    }
    let request = Request::builder().method(Method::POST).uri(endpoint);
    let request = request.header(CONTENT_TYPE, "application/x-www-form-urlencoded");
    let request = request.body(Bytes::from(body.finish())).map_err(|error| error.to_string())?;
    Ok(match discovery::fetch(client, request).await {
        Ok(response) if response.status().is_success() => {
            format!("the login at {server} is deleted and revoked")
        }
        Ok(response) => {
            format!("the login at {server} is deleted here; revoking it failed: {}", response.status())
        }
        Err(why) => format!("the login at {server} is deleted here; revoking it failed: {why}"),
    })
}

fn no_folder() -> String {
    "there is no folder for logins: set XDG_STATE_HOME or HOME".to_owned()
}

/// Renews the token before its end, as often as there is another one.
async fn renew_in_time(shared: Weak<Shared>, authorization: Authorization) {
    let Some(mut current) = shared.upgrade().map(|shared| shared.current.subscribe()) else { return };
    loop {
        let renews_in = current.borrow_and_update().as_ref().and_then(Stored::renews_in);
        let due = async {
            match renews_in {
                Some(time) => tokio::time::sleep(time).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            changed = current.changed() => match changed {
                Ok(()) => continue,
                Err(_) => return,
            },
            () = due => {}
        }
        let Some(shared) = shared.upgrade() else { return };
        let mut run = shared.renewal(&authorization, Why::Ending);
        drop(shared);
        drop(run.wait_for(|progress| matches!(progress, Progress::Ended(_))).await);
        // If that failed, the next request finds it out.
        if current.changed().await.is_err() {
            return;
        }
    }
}

impl Shared {
    /// Waits until there is another token than the one that was refused, or until it is known why there is none.
    async fn refused(
        self: &Arc<Self>,
        authorization: &Authorization,
        refusal: &CredentialRefusal,
    ) -> Result<(), String> {
        let challenge = Challenge::read(&refusal.challenges, refusal.status);
        let refused = self.token();
        // The renewal that runs may have begun for another reason.
        for _ in 0..2 {
            let mut run = self.renewal(authorization, Why::Refused(challenge.clone()));
            let progress = run.wait_for(|progress| match progress {
                Progress::Running => false,
                // Another process may have the user's answer by now.
                Progress::WaitsFor(_) => self.file.as_ref().is_some_and(|file| file.address().is_some()),
                Progress::Ended(_) => true,
            });
            let progress = progress.await;
            match progress.as_deref() {
                Ok(Progress::Ended(Ok(()))) if self.token() == refused => {}
                Ok(Progress::Ended(ended)) => return ended.clone(),
                Ok(Progress::WaitsFor(url)) => return Err(self.must_log_in(url)),
                Ok(Progress::Running) | Err(_) => return Err("the login has ended".to_owned()),
            }
        }
        Ok(())
    }

    fn must_log_in(&self, url: &str) -> String {
        let server = self.name();
        if self.shows_address {
            format!(
                "{server} wants a login, and no browser could be opened: open {url} on this machine, then try again"
            )
        } else {
            format!("{server} wants a login: the operator of the bridge finds its address on stderr")
        }
    }

    fn name(&self) -> String {
        self.server.origin().ascii_serialization()
    }

    fn token(&self) -> Option<String> {
        self.current.borrow().as_ref().map(|stored| stored.access_token.clone())
    }

    /// The renewal that runs, or a new one.
    fn renewal(self: &Arc<Self>, authorization: &Authorization, why: Why) -> watch::Receiver<Progress> {
        let mut run = self.run.lock().unwrap_or_else(PoisonError::into_inner);
        let runs = run
            .as_ref()
            .filter(|run| run.has_changed().is_ok() && !matches!(&*run.borrow(), Progress::Ended(_)));
        if let Some(runs) = runs {
            return runs.clone();
        }
        let (progress, receiver) = watch::channel(Progress::Running);
        *run = Some(receiver.clone());
        drop(run);
        let (shared, authorization) = (Arc::clone(self), authorization.clone());
        tokio::spawn(async move {
            let ended = shared.renew(&authorization, why, &progress).await;
            if let Err(why) = &ended {
                output::note(format!("rescind: the login at {} failed: {why}\n", shared.name()));
            }
            progress.send_replace(Progress::Ended(ended));
        });
        receiver
    }

    async fn renew(
        &self,
        authorization: &Authorization,
        why: Why,
        progress: &watch::Sender<Progress>,
    ) -> Result<(), String> {
        let issuer = match &why {
            // Only a server with a login needs the folder.
            Why::Refused(challenge) if self.token().is_none() => {
                match Issuer::find(&self.client, &self.server, challenge).await? {
                    None => return Ok(()),
                    found => found,
                }
            }
            Why::Refused(_) | Why::Ending => None,
        };
        let file = self.file.as_ref().ok_or_else(no_folder)?;
        let lock = Self::locked(file, progress).await?;
        let mut stored = file.read(self.server.as_str());
        let known = self.token();
        if let Some(stored) =
            stored.as_ref().filter(|it| Some(&it.access_token) != known.as_ref() && !it.has_expired())
        {
            return self.take(authorization, stored.clone());
        }
        let mut forget = false;
        let wants_scopes = matches!(&why, Why::Refused(challenge) if challenge.wants_scopes);
        if let Some((stored, token)) = stored.as_ref().and_then(|it| Some((it, it.refresh_token.as_ref()?)))
            && !wants_scopes
        {
            match self.refresh(stored, token).await? {
                Ok(stored) => {
                    file.write(&stored)?;
                    return self.take(authorization, stored);
                }
                Err(BasicErrorResponseType::InvalidGrant) => {}
                // The client is not known any more, and must be registered again.
                Err(_) => forget = true,
            }
        }
        stored = stored.filter(|_| !forget);
        let Why::Refused(challenge) = why else { return Ok(()) };
        if !self.may_ask_user(stored.as_ref(), &challenge) {
            return Ok(());
        }
        let issuer = match issuer {
            Some(issuer) => issuer,
            None => match Issuer::find(&self.client, &self.server, &challenge).await? {
                Some(issuer) => issuer,
                None => return Ok(()),
            },
        };
        let stored = self.ask_user(issuer, stored.as_ref(), wants_scopes, (&lock, progress)).await?;
        *self.asked_user.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
        file.write(&stored)?;
        output::note(format!("rescind: logged in at {}\n", self.name()));
        self.take(authorization, stored)
    }

    /// Waits for the lock. Meanwhile another process may wait for the user.
    async fn locked(file: &LoginFile, progress: &watch::Sender<Progress>) -> Result<Lock, String> {
        loop {
            if let Some(lock) = file.try_lock()? {
                progress.send_replace(Progress::Running);
                return Ok(lock);
            }
            progress.send_replace(file.address().map_or(Progress::Running, Progress::WaitsFor));
            tokio::time::sleep(LOCK_AGAIN).await;
        }
    }

    /// Whether a login of the user can help.
    fn may_ask_user(&self, stored: Option<&Stored>, challenge: &Challenge) -> bool {
        let has_scopes = stored.is_some_and(|stored| {
            challenge.scopes.iter().flatten().all(|scope| stored.scopes.contains(scope))
        });
        let asked = *self.asked_user.lock().unwrap_or_else(PoisonError::into_inner);
        let is_recent = asked.is_some_and(|asked| asked.elapsed() < USER_PAUSE);
        if challenge.wants_scopes { !has_scopes } else { !is_recent }
    }

    /// Uses this login from the next request on.
    fn take(&self, authorization: &Authorization, stored: Stored) -> Result<(), String> {
        let set = authorization.set(&format!("Bearer {}", stored.access_token));
        set.map_err(|_| "the access token is not valid in a header".to_owned())?;
        self.current.send_replace(Some(stored));
        Ok(())
    }

    /// A new token for the refresh token, or the error by which the authorization server refuses it.
    async fn refresh(
        &self,
        stored: &Stored,
        token: &str,
    ) -> Result<Result<Stored, BasicErrorResponseType>, String> {
        let not_renewed =
            |why: &str| format!("the token could not be renewed (--logout forgets this login): {why}");
        let endpoint = TokenUrl::new(stored.token_endpoint.clone()).map_err(|error| error.to_string())?;
        let client = oauth_client(&stored.client, endpoint);
        let token = RefreshToken::new(token.to_owned());
        let request = client.exchange_refresh_token(&token).add_extra_param("resource", &stored.resource);
        match request.request_async(&|request| fetch(self.client.clone(), request)).await {
            Ok(response) => {
                let mut renewed = stored.clone();
                keep(&mut renewed, &response)?;
                Ok(Ok(renewed))
            }
            Err(RequestTokenError::ServerResponse(error)) => match error.error() {
                BasicErrorResponseType::InvalidGrant
                | BasicErrorResponseType::InvalidClient
                | BasicErrorResponseType::UnauthorizedClient => Ok(Err(error.error().clone())),
                code => Err(not_renewed(discovery::error_code(code.as_ref()))),
            },
            Err(error) => Err(not_renewed(&reason(error))),
        }
    }

    /// Logs the user in.
    async fn ask_user(
        &self,
        issuer: Issuer,
        before: Option<&Stored>,
        wants_scopes: bool,
        (lock, progress): (&Lock, &watch::Sender<Progress>),
    ) -> Result<Stored, String> {
        let before = before.filter(|before| before.issuer == issuer.name);
        let (redirect, client) = self.registered(&issuer, before).await?;
        let mut scopes = issuer.scopes.clone();
        if let Some(before) = before.filter(|_| wants_scopes) {
            scopes.extend(before.scopes.iter().filter(|scope| !issuer.scopes.contains(scope)).cloned());
        }
        let token = TokenUrl::from_url(issuer.token.clone());
        let oauth = oauth_client(&client, token)
            .set_auth_uri(AuthUrl::from_url(issuer.authorization.clone()))
            .set_redirect_uri(RedirectUrl::from_url(redirect.url()?));
        let (challenge, verifier) = PkceCodeChallenge::new_random_sha256();
        let (url, state) = oauth
            .authorize_url(CsrfToken::new_random)
            .add_scopes(scopes.iter().cloned().map(Scope::new))
            .add_extra_param("resource", &issuer.resource)
            .set_pkce_challenge(challenge)
            .url();
        output::note(format!("rescind: to log in at {}, open {url}\n", self.name()));
        let expected = Expected {
            state: state.into_secret(),
            issuer: issuer.name.clone(),
            names_issuer: issuer.names_itself,
        };
        let opened = async {
            if !browser::open(self.args.browser.as_deref(), &url).await {
                lock.show(url.as_str());
                progress.send_replace(Progress::WaitsFor(url.to_string()));
            }
            std::future::pending::<()>().await;
        };
        let code = tokio::select! {
            code = tokio::time::timeout(USER_TIME, redirect.code(expected)) => code,
            () = opened => return Err("the login has ended".to_owned()),
        };
        let code =
            code.map_err(|_| format!("nobody has logged in within {} s at {url}", USER_TIME.as_secs()))??;
        lock.hide();
        progress.send_replace(Progress::Running);
        let request = oauth.exchange_code(AuthorizationCode::new(code)).set_pkce_verifier(verifier);
        let request = request.add_extra_param("resource", &issuer.resource);
        let response = request.request_async(&|request| fetch(self.client.clone(), request)).await;
        let response = response.map_err(|error| format!("the login gave no token: {}", reason(error)))?;
        let mut stored = Stored {
            server: self.server.to_string(),
            issuer: issuer.name,
            token_endpoint: issuer.token.to_string(),
            revocation_endpoint: issuer.revocation.map(String::from),
            client,
            resource: issuer.resource,
            scopes,
            access_token: String::new(),
            refresh_token: None,
            expires_at: None,
            lifetime: None,
        };
        keep(&mut stored, &response)?;
        Ok(stored)
    }

    /// The client of this program at the issuer, and the address of its redirect.
    async fn registered(
        &self,
        issuer: &Issuer,
        before: Option<&Stored>,
    ) -> Result<(Redirect, Client), String> {
        let fixed = self.args.login_port;
        if let Some(id) = &self.args.client_id {
            let secret = match &self.args.client_secret_file {
                None => None,
                Some(file) => {
                    let read = std::fs::read_to_string(file);
                    let read =
                        read.map_err(|error| format!("{} could not be read: {error}", file.display()))?;
                    Some(read.trim().to_owned())
                }
            };
            let secret_in_body = issuer.takes_secret_in_body();
            let client = Client { id: id.clone(), secret, secret_in_body, redirect_port: fixed };
            return Ok((Redirect::listen(fixed.unwrap_or(0)).await?, client));
        }
        // Some servers accept only the port that they know.
        let known = before.map(|before| &before.client);
        if let Some((client, port)) = known.and_then(|client| Some((client, client.redirect_port?)))
            && fixed.is_none_or(|fixed| fixed == port)
            && let Ok(redirect) = Redirect::listen(port).await
        {
            return Ok((redirect, client.clone()));
        }
        let redirect = Redirect::listen(fixed.unwrap_or(0)).await?;
        let client = issuer.register(&self.client, &redirect.url()?, redirect.port()).await?;
        Ok((redirect, client))
    }
}

fn oauth_client(
    client: &Client,
    token: TokenUrl,
) -> BasicClient<EndpointNotSet, EndpointNotSet, EndpointNotSet, EndpointNotSet, EndpointSet> {
    let made = BasicClient::new(ClientId::new(client.id.clone())).set_token_uri(token);
    let made = match &client.secret {
        None => made,
        Some(secret) => made.set_client_secret(ClientSecret::new(secret.clone())),
    };
    made.set_auth_type(if client.secret_in_body { AuthType::RequestBody } else { AuthType::BasicAuth })
}

/// Keeps the tokens of a response. What it leaves out stays.
fn keep(stored: &mut Stored, response: &BasicTokenResponse) -> Result<(), String> {
    if *response.token_type() != BasicTokenType::Bearer {
        return Err("the authorization server gave a token of an unknown type".to_owned());
    }
    stored.access_token.clone_from(response.access_token().secret());
    if let Some(token) = response.refresh_token() {
        stored.refresh_token = Some(token.secret().clone());
    }
    if let Some(scopes) = response.scopes() {
        stored.scopes.extend(scopes.iter().map(|scope| scope.to_string()));
        stored.scopes.sort_unstable();
        stored.scopes.dedup();
    }
    stored.lifetime = response.expires_in().and_then(|time| u64::try_from(time.as_millis()).ok());
    stored.expires_at = stored.lifetime.map(|lifetime| store::now().saturating_add(lifetime));
    Ok(())
}

/// The error of a request for a token.
#[derive(Debug)]
struct FetchError(String);

impl std::fmt::Display for FetchError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for FetchError {}

/// Why a request for a token failed, without what the server wrote: it may repeat secrets.
fn reason(error: BasicRequestTokenError<FetchError>) -> String {
    match error {
        RequestTokenError::ServerResponse(error) => {
            format!("the authorization server answered {}", discovery::error_code(error.error().as_ref()))
        }
        RequestTokenError::Request(error) => error.0,
        RequestTokenError::Parse(..) | RequestTokenError::Other(_) => {
            "the answer of the authorization server cannot be read".to_owned()
        }
    }
}

async fn fetch(client: HttpClient, request: HttpRequest) -> Result<HttpResponse, FetchError> {
    let response = discovery::fetch(&client, request.map(Bytes::from)).await.map_err(FetchError)?;
    Ok(response.map(|body| body.to_vec()))
}
