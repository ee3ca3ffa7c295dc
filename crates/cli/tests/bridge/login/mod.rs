//! Logins of a bridge at an authorization server that does what the RFCs say, and at servers that do not. The browser is a
//! script that writes its address into a pipe, and the tests follow it.

mod server;

use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use oauth2::url::Url;
use rescind::dialect::{Dialect, Role};
use rescind::http::HttpClient;
use rescind::stdio::ChildHandle;
use rescind::{Outcome, Peer};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::net::unix::pipe::Receiver;

use super::{Bridge, error_of, hello, soon};
use crate::common::{Files, output, rescind, text};
use server::{Server, Wrong};

/// A user: a folder for state, and a browser.
struct User {
    files: Files,
    browser: String,
    addresses: Lines<BufReader<Receiver>>,
}

/// A command that does not outlive its test.
struct Killed(std::process::Child);

impl Drop for Killed {
    fn drop(&mut self) {
        // It may have ended already.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// A bridge on stdio, and its client.
struct Started {
    client: Peer,
    child: ChildHandle,
    stderr: String,
}

impl User {
    fn new() -> Self {
        let files = Files::new();
        let pipe = files.path("addresses");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let script = files.write("browser", &format!("printf '%s\\n' \"$1\" > '{pipe}'\n"));
        // With a writer of its own it never ends.
        let file = std::fs::OpenOptions::new().read(true).write(true).open(&pipe).unwrap();
        let receiver = Receiver::from_file(file).unwrap();
        let addresses = BufReader::new(receiver).lines();
        Self { browser: format!("sh {script}"), files, addresses }
    }

    /// The next address that the browser was to open.
    async fn address(&mut self) -> Url {
        let line = soon("an address for the browser", self.addresses.next_line()).await.unwrap().unwrap();
        line.parse().unwrap()
    }

    /// Agrees to the next login, and returns the address of the redirect.
    async fn log_in(&mut self) -> Url {
        let address = self.address().await;
        follow(&address).await
    }

    fn start(&self, name: &str, more: &[&str]) -> Started {
        let stderr = self.files.path(name);
        let arguments = ["-vv", "bridge", "--dialect", "mcp", "--listen", "stdio"];
        let command = rescind::stdio::Command::new("sh").args(["-c", "exec \"$@\" 2>\"$0\"", &stderr]);
        let command = command.arg(env!("CARGO_BIN_EXE_rescind")).args(arguments).args(more);
        let (link, child) = command.env("XDG_STATE_HOME", self.files.path("state")).start().unwrap();
        let client = Peer::builder(Dialect::by_name("mcp").unwrap()).role(Role::Client).attach(link).unwrap();
        Started { client, child, stderr }
    }

    /// Runs the bridge with an option that ends it, and returns what it wrote.
    fn run(&self, option: &str, server: &Server) -> impl Future<Output = String> + use<> {
        let mut command = rescind(&["bridge", "--dialect", "mcp", "--listen", "stdio", option, &server.url]);
        command.args(["--browser", &self.browser]).env("XDG_STATE_HOME", self.files.path("state"));
        let child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let mut child = Killed(child);
        let mut stderr = child.0.stderr.take().unwrap();
        let reading = tokio::task::spawn_blocking(move || {
            let mut said = String::new();
            stderr.read_to_string(&mut said).unwrap();
            said
        });
        async move {
            let said = soon("the end of the command", reading).await.unwrap();
            assert_eq!(child.0.wait().unwrap().code(), Some(0), "{said}");
            said
        }
    }

    /// The files of logins of this user that have this end.
    fn stored(&self, end: &str) -> Vec<std::path::PathBuf> {
        let folder = std::fs::read_dir(self.files.path("state/rescind/logins"));
        let files = folder.map(|folder| folder.map(|file| file.unwrap().path()).collect::<Vec<_>>());
        let files = files.unwrap_or_default().into_iter();
        files.filter(|file| file.extension().is_some_and(|own| own == end)).collect()
    }
}

impl Started {
    async fn open(&self) {
        let opened = self.client.call::<_, Value>("initialize", &hello("mcp"));
        soon("the handshake", opened).await.unwrap();
        self.client.notify("notifications/initialized", &json!({})).await.unwrap();
    }

    async fn refused(&self) -> String {
        error_of(&self.client, "initialize", &hello("mcp")).await.message.clone()
    }

    async fn call(&self, name: &str, number: u64) -> u64 {
        let params = json!({"name": name, "arguments": {"number": number}});
        let answer: Value = soon("an answer", self.client.call("tools/call", &params)).await.unwrap();
        answer["structuredContent"]["number"].as_u64().unwrap()
    }

    /// Ends it, and returns what it wrote.
    async fn ended(self) -> String {
        soon("the end of the connection", self.client.shutdown(Duration::ZERO)).await;
        soon("the end of the bridge", self.child.wait()).await;
        std::fs::read_to_string(&self.stderr).unwrap()
    }

    /// Ends it. None of what was secret is in what it wrote or said.
    async fn shows_no_secret(self, server: &Server, said: &str) {
        let written = self.ended().await;
        let secrets = server.secrets();
        assert!(!secrets.is_empty() && written.len() > 1000, "{written}");
        for secret in secrets {
            assert!(!written.contains(&secret), "{secret} in {written}");
            assert!(!said.contains(&secret), "{secret} in {said}");
        }
    }
}

async fn get(url: &Url) -> Result<(u16, Option<Url>), String> {
    let request = axum::http::Request::builder().uri(url.as_str()).body(Bytes::new()).unwrap();
    let client = HttpClient::new(url.as_str()).unwrap();
    let response = soon("a page", client.fetch(request, 1 << 20)).await.map_err(|error| error.to_string())?;
    let to = response.headers().get("location").map(|to| to.to_str().unwrap().parse().unwrap());
    Ok((response.status().as_u16(), to))
}

/// Agrees to a login.
async fn follow(address: &Url) -> Url {
    let (status, redirect) = get(address).await.unwrap();
    assert_eq!(status, 302, "{address}");
    let redirect = redirect.unwrap();
    assert_eq!(get(&redirect).await.unwrap().0, 200);
    redirect
}

fn param(url: &Url, name: &str) -> String {
    url.query_pairs().find(|(key, _)| key == name).unwrap().1.into_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bridge_logs_in_once_and_the_next_one_uses_the_login() {
    let (server, mut user) = (Server::start(Wrong::Nothing, None).await, User::new());
    let bridge = user.start("first", &["--browser", &user.browser, &server.url]);
    let redirect = tokio::join!(bridge.open(), user.log_in()).1;
    assert_eq!(bridge.call("read", 1).await, 1);
    assert!(redirect.as_str().starts_with("http://127.0.0.1:"), "{redirect}");
    // Its address is gone, so a code is used once.
    assert!(get(&redirect).await.is_err());
    let counts = server.counts();
    assert_eq!((counts.registered, counts.authorized, counts.exchanged), (1, 1, 1));
    let stored = user.stored("json");
    assert_eq!(stored.len(), 1);
    assert_eq!(std::fs::metadata(&stored[0]).unwrap().permissions().mode() & 0o777, 0o600);
    bridge.shows_no_secret(&server, "").await;
    // Another one, after the token has ended.
    server.end_tokens();
    let bridge = user.start("second", &["--browser", "none", &server.url]);
    bridge.open().await;
    assert_eq!(bridge.call("read", 2).await, 2);
    let counts = server.counts();
    assert_eq!((counts.authorized, counts.refreshed, counts.faults.len()), (1, 1, 0), "{counts:?}");
    bridge.shows_no_secret(&server, "").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_end_under_running_calls_and_no_call_is_lost_or_runs_twice() {
    const CALLERS: u64 = 16;
    const CALLS: u64 = 40;
    const ENDS: usize = 5;
    let (server, mut user) = (Server::start(Wrong::Nothing, Some(3600)).await, User::new());
    let bridge = user.start("stderr", &["--browser", &user.browser, &server.url]);
    tokio::join!(bridge.open(), user.log_in());
    let bridge = Arc::new(bridge);
    let callers = (0..CALLERS).map(|caller| {
        let bridge = Arc::clone(&bridge);
        tokio::spawn(async move {
            for number in caller * CALLS..(caller + 1) * CALLS {
                assert_eq!(bridge.call("read", number).await, number);
            }
        })
    });
    let callers: Vec<_> = callers.collect();
    for end in 1..=ENDS {
        server.until(|counts| counts.calls >= end * 100).await;
        server.end_tokens();
        server.until(|counts| counts.refreshed >= end).await;
    }
    for caller in callers {
        caller.await.unwrap();
    }
    let bridge = Arc::into_inner(bridge).unwrap();
    let calls = server.calls();
    assert_eq!(calls.len() as u64, CALLERS * CALLS);
    assert!(calls.values().all(|runs| *runs == 1));
    let counts = server.counts();
    assert_eq!((counts.authorized, counts.refreshed, counts.faults.len()), (1, ENDS, 0), "{counts:?}");
    bridge.shows_no_secret(&server, "").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_is_renewed_before_its_end() {
    let (server, mut user) = (Server::start(Wrong::Nothing, Some(8)).await, User::new());
    let bridge = user.start("stderr", &["--browser", &user.browser, &server.url]);
    tokio::join!(bridge.open(), user.log_in());
    let refused = server.counts().refused;
    server.until(|counts| counts.refreshed >= 1).await;
    assert_eq!(bridge.call("read", 1).await, 1);
    assert_eq!(server.counts().refused, refused, "no request had to show an old token");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_browser_the_error_has_the_address_and_later_calls_are_answered() {
    let (server, user) = (Server::start(Wrong::Nothing, None).await, User::new());
    let options = ["--browser", "none", "--client-id", "known", &server.url];
    let (one, other) = (user.start("one", &options), user.start("other", &options));
    let said = one.refused().await;
    let address = said.split(' ').find(|word| word.contains("/as/authorize?")).unwrap();
    // A second bridge waits for the same login.
    let same = other.refused().await;
    assert!(same.contains(address), "{same}");
    follow(&address.parse().unwrap()).await;
    server.until(|counts| counts.exchanged == 1).await;
    one.open().await;
    other.open().await;
    assert_eq!((one.call("read", 1).await, other.call("read", 2).await), (1, 2));
    let counts = server.counts();
    assert_eq!((counts.registered, counts.authorized, counts.faults.len()), (0, 1, 0), "{counts:?}");
    assert!(user.stored("url").is_empty());
    other.shows_no_secret(&server, &same).await;
    one.shows_no_secret(&server, &said).await;
    let shown = std::fs::read_to_string(user.files.path("one")).unwrap();
    assert!(shown.contains(&format!("open {address}")), "{shown}");
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_of_a_listening_bridge_do_not_see_the_address() {
    let (server, user) = (Server::start(Wrong::Nothing, None).await, User::new());
    let state = user.files.path("state");
    let bridge = Bridge::with_environment(
        "mcp",
        "http://127.0.0.1:0/mcp",
        &["--browser", "none", &server.url],
        &[("XDG_STATE_HOME", &state)],
    );
    let said = error_of(&bridge.stranger("mcp").await, "initialize", &hello("mcp")).await;
    assert!(said.message.contains("the operator") && !said.message.contains("authorize"), "{said}");
    bridge.signal(rustix::process::Signal::TERM);
    let (code, written) = bridge.ended().await;
    assert!(written.contains("/as/authorize?"), "{written}");
    assert_eq!(code, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn two_bridges_at_once_share_one_login_and_each_renewal() {
    let (server, mut user) = (Server::start(Wrong::Nothing, None).await, User::new());
    let options = ["--browser", &user.browser, &server.url];
    let (one, other) = (user.start("one", &options), user.start("other", &options));
    tokio::join!(one.open(), other.open(), user.log_in());
    for round in 1..=3 {
        server.end_tokens();
        assert_eq!(tokio::join!(one.call("read", round), other.call("read", round)), (round, round));
    }
    let counts = server.counts();
    assert_eq!((counts.registered, counts.authorized, counts.exchanged), (1, 1, 1), "{counts:?}");
    assert_eq!((counts.refreshed, counts.faults.len()), (3, 0), "{counts:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bridge_that_ends_in_its_login_leaves_the_next_one_to_log_in() {
    let (server, mut user) = (Server::start(Wrong::Nothing, None).await, User::new());
    let options = ["--browser", &user.browser, &server.url];
    let (one, other) = (user.start("one", &options), user.start("other", &options));
    let waits = one.client.call::<_, Value>("initialize", &hello("mcp")).start().unwrap();
    let abandoned = user.address().await;
    let opening = async {
        one.ended().await;
        let address = user.address().await;
        assert_ne!(param(&address, "state"), param(&abandoned, "state"));
        follow(&address).await;
    };
    tokio::join!(other.open(), opening);
    drop(waits);
    assert_eq!(other.call("read", 1).await, 1);
    assert_eq!(server.counts().authorized, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_login_that_has_ended_begins_again_and_more_scopes_are_asked_for() {
    let (server, mut user) = (Server::start(Wrong::Nothing, None).await, User::new());
    let bridge = user.start("stderr", &["--browser", &user.browser, &server.url]);
    tokio::join!(bridge.open(), user.log_in());
    let write = async {
        let address = user.address().await;
        assert_eq!(param(&address, "scope"), "write read");
        follow(&address).await;
    };
    assert_eq!(tokio::join!(bridge.call("write", 1), write).0, 1);
    drop(bridge);
    server.end_logins();
    let bridge = user.start("later", &["--browser", &user.browser, &server.url]);
    tokio::join!(bridge.open(), user.log_in());
    assert_eq!(server.counts().authorized, 3);
    assert_eq!(server.counts().faults, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_waits_for_a_login_can_be_cancelled_and_the_login_goes_on() {
    let (server, mut user) = (Server::start(Wrong::Nothing, None).await, User::new());
    let bridge = user.start("stderr", &["--browser", &user.browser, &server.url]);
    tokio::join!(bridge.open(), user.log_in());
    server.end_logins();
    // Only the first 30 s after a login ask for no other one, so another bridge begins.
    drop(bridge);
    let bridge = user.start("later", &["--browser", &user.browser, &server.url]);
    let call =
        bridge.client.call::<_, Value>("tools/call", &json!({"name": "read", "arguments": {"number": 1}}));
    let call = call.start().unwrap();
    let address = user.address().await;
    call.canceller().cancel("not needed");
    let outcome = soon("the end of the call", call.outcome()).await;
    assert!(matches!(outcome, Outcome::Cancelled(_)), "{outcome:?}");
    follow(&address).await;
    server.until(|counts| counts.exchanged == 2).await;
    bridge.open().await;
    assert_eq!(bridge.call("read", 2).await, 2);
    assert_eq!(server.calls().into_keys().collect::<Vec<_>>(), [2]);
    assert_eq!(server.counts().authorized, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_login_can_be_made_before_and_a_logout_deletes_and_revokes_it() {
    let (server, mut user) = (Server::start(Wrong::Nothing, None).await, User::new());
    let login = user.run("--login", &server);
    let (said, _) = tokio::join!(login, user.log_in());
    assert!(said.contains("there is a login"), "{said}");
    assert!(user.run("--login", &server).await.contains("there is a login"));
    assert_eq!((server.counts().authorized, server.counts().refreshed), (1, 1));
    let bridge = user.start("stderr", &["--browser", "none", &server.url]);
    bridge.open().await;
    drop(bridge);
    assert!(user.run("--logout", &server).await.contains("is deleted and revoked"));
    assert!(user.run("--logout", &server).await.contains("there was no login"));
    assert!(user.stored("json").is_empty());
    assert_eq!(server.counts().revoked, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_sends_its_users_elsewhere_gets_no_login() {
    let cases = [
        (Wrong::OtherIssuer, "another issuer"),
        (Wrong::TokenElsewhere, "the token endpoint of"),
        (Wrong::PlainHttp, "the authorization endpoint is not an https address"),
        (Wrong::NoPkce, "does not support PKCE"),
        (Wrong::OtherResource, "metadata are those of another server"),
        (Wrong::MetadataElsewhere, "metadata are at another origin"),
        (Wrong::EndlessMetadata, "over the limit of 262144 bytes"),
    ];
    let played = cases.map(|(wrong, word)| async move {
        let (server, user) = (Server::start(wrong, None).await, User::new());
        let bridge = user.start("stderr", &["--browser", &user.browser, &server.url]);
        let said = bridge.refused().await;
        assert!(said.contains(word), "{wrong:?}: {said}");
        let counts = server.counts();
        assert_eq!((counts.registered, counts.authorized, counts.exchanged), (0, 0, 0), "{wrong:?}");
        assert!(user.stored("json").is_empty());
    });
    join_all(played).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_of_an_authorization_server_that_is_wrong_ends_the_login() {
    let cases = [
        (Wrong::RedirectOfOtherIssuer, "another issuer"),
        (Wrong::EndlessToken, "over the limit of 262144 bytes"),
        (Wrong::RedirectedToken, "cannot be read"),
        (Wrong::SilentToken, "did not answer within 10 s"),
        (Wrong::Repeats, "answered an unknown error"),
        (Wrong::AcceptsNoToken, "401 Unauthorized"),
    ];
    let played = cases.map(|(wrong, word)| async move {
        let (server, mut user) = (Server::start(wrong, None).await, User::new());
        let bridge = user.start("stderr", &["--browser", &user.browser, &server.url]);
        let (said, _) = tokio::join!(bridge.refused(), user.log_in());
        assert!(said.contains(word), "{wrong:?}: {said}");
        let has_login = wrong == Wrong::AcceptsNoToken;
        assert_eq!(server.counts().exchanged, usize::from(has_login), "{wrong:?}");
        assert_eq!(server.counts().faults, Vec::<String>::new(), "{wrong:?}");
        assert_eq!(user.stored("json").len(), usize::from(has_login), "{wrong:?}");
        if has_login {
            // The user is not asked again and again.
            assert!(bridge.refused().await.contains(word));
            assert_eq!(server.counts().authorized, 1);
        }
        bridge.shows_no_secret(&server, &said).await;
    });
    join_all(played).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redirect_with_another_state_is_refused_and_one_that_comes_twice_is_used_once() {
    let (server, mut user) = (Server::start(Wrong::OtherState, None).await, User::new());
    let bridge = user.start("stderr", &["--browser", &user.browser, &server.url]);
    let logging_in = async {
        let address = user.address().await;
        let redirect = get(&address).await.unwrap().1.unwrap();
        assert_eq!(get(&redirect).await.unwrap().0, 400);
        assert_eq!(server.counts().exchanged, 0);
        // The login still waits for its own state.
        let own = redirect.as_str().replace("state=another", &format!("state={}", param(&address, "state")));
        let own: Url = own.parse().unwrap();
        let all = join_all((0..8).map(|_| get(&own))).await;
        let taken = all.iter().filter(|got| matches!(got, Ok((200, _)))).count();
        assert_eq!(taken, 1, "{all:?}");
        assert!(all.iter().all(|got| matches!(got, Ok((200 | 410, _)) | Err(_))), "{all:?}");
    };
    tokio::join!(bridge.open(), logging_in);
    let counts = server.counts();
    assert_eq!((counts.exchanged, counts.faults.len()), (1, 0), "{counts:?}");
}

#[test]
fn a_login_is_only_for_an_endpoint_over_http_without_a_token_file() {
    let files = Files::new();
    let token = files.write("token", "a-long-and-secret-token");
    for (more, word) in [
        (&["--logout", "ws://127.0.0.1:1/"][..], "without --to-token-file"),
        (&["--browser", "x", "--to-token-file", &token, "http://127.0.0.1:1/"], "without --to-token-file"),
        (&["--client-id", "x", "--", "true"], "for an ENDPOINT"),
        (&["--client-secret-file", "x", "http://127.0.0.1:1/"], "--client-id"),
    ] {
        let done = output(&[&["bridge", "--dialect", "mcp", "--listen", "stdio"], more].concat());
        assert_eq!(done.status.code(), Some(2), "{more:?}");
        assert!(text(&done.stderr).contains(word), "{more:?}: {}", text(&done.stderr));
    }
}
