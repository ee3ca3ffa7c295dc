//! Another user at the other end, which is possible on systems that ignore the mode of a socket. The other user is a
//! process that this test starts, which needs root. Otherwise these tests print that they are skipped.
#![expect(clippy::unwrap_used, reason = "what the tests share is part of them")]

use std::fs::{self, Permissions};
use std::io::Read as _;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rescind_core::{Transport as _, TransportError};
use rescind_named_pipe::{NamedPipeListener, NamedPipeTransport};
use rescind_testkit::support::in_time;

use crate::common::{STARTS, TempPath, accept, skipped};

/// The user `nobody` on most systems.
const STRANGER: u32 = 65_534;
/// The environment variables of the process with its role and its socket.
const ROLE: &str = "RESCIND_TEST_STRANGER";
const SOCKET: &str = "RESCIND_TEST_SOCKET";

/// The program that the tests below start as another user. Without the variables it does nothing.
#[test]
fn the_stranger() {
    let (Some(role), Some(socket)) = (std::env::var_os(ROLE), std::env::var_os(SOCKET)) else { return };
    let mut stream = if role == "client" {
        UnixStream::connect(socket).unwrap()
    } else {
        let listener = UnixListener::bind(socket).unwrap();
        println!("\nready");
        listener.accept().unwrap().0
    };
    // Waits for the hang-up. A reset counts as one.
    let _ = stream.read(&mut [0]);
}

/// Whether a process can be started as another user.
fn is_root(test: &str) -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        skipped(test, "only root can start a process of another user");
    }
    is_root
}

/// A copy of this program that every user may run. The build directory may be closed to other users.
fn program(place: &Path) -> PathBuf {
    let program = place.join("stranger");
    fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
    program
}

async fn start(role: &str, socket: &Path, place: &Path) -> Child {
    let _alone = STARTS.write().await;
    let mut command = Command::new(program(place));
    command.args(["--exact", "other_users::the_stranger", "--nocapture"]).env(ROLE, role).env(SOCKET, socket);
    command.current_dir("/").stdout(Stdio::piped()).uid(STRANGER).gid(STRANGER).spawn().unwrap()
}

fn open_to_all(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

fn is_refused(error: &TransportError) {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(behind) = source {
        text = format!("{text}: {behind}");
        source = behind.source();
    }
    assert!(text.contains("the peer runs as user id 65534 and this process as 0"), "{text}");
}

#[tokio::test]
async fn a_client_of_another_user_is_refused_and_ours_is_served() {
    if !is_root("a_client_of_another_user_is_refused_and_ours_is_served") {
        return;
    }
    let place = TempPath::new();
    let mut listener = NamedPipeListener::bind(&place.address()).await.unwrap();
    open_to_all(place.as_ref(), 0o711);
    open_to_all(&place.file(), 0o666);
    let mut stranger = start("client", &place.file(), place.as_ref()).await;
    let refused = in_time("a client", accept(&mut listener)).await;
    is_refused(&refused.expect_err("another user is served"));
    assert!(stranger.wait().unwrap().success(), "it came through to the socket, and was hung up on");
    let ours = Box::new(NamedPipeTransport::new(place.address())).open().await;
    assert!(ours.is_ok() && in_time("a client", accept(&mut listener)).await.is_ok(), "the listener goes on");
}

#[tokio::test]
async fn a_server_of_another_user_is_refused() {
    if !is_root("a_server_of_another_user_is_refused") {
        return;
    }
    let place = TempPath::new();
    open_to_all(place.as_ref(), 0o711);
    let theirs = place.as_ref().join("theirs");
    fs::create_dir(&theirs).unwrap();
    chown(&theirs, Some(STRANGER), Some(STRANGER)).unwrap();
    let socket = theirs.join("agent.sock");
    let mut stranger = start("server", &socket, place.as_ref()).await;
    let mut said = std::io::BufReader::new(stranger.stdout.take().unwrap());
    let mut line = String::new();
    while line.trim() != "ready" {
        line.clear();
        assert!(std::io::BufRead::read_line(&mut said, &mut line).unwrap() > 0, "it never listens");
    }
    let address = rescind_named_pipe::PipeAddress::path(&socket);
    let refused = in_time("the refusal", Box::new(NamedPipeTransport::new(address)).open()).await;
    is_refused(&refused.expect_err("another user's server is spoken to"));
    assert!(stranger.wait().unwrap().success());
}
