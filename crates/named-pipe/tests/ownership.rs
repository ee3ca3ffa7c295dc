//! The ownership of a path: stale sockets, running listeners, modes, and the files that remain when a listener is
//! dropped; and a connection that ends in one direction.
#![expect(clippy::unwrap_used, reason = "what the tests share is part of them")]

use std::fs;
use std::future::poll_fn;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::UnixListener;
use std::path::Path;

use rescind_core::{Listener as _, TransportEvent};
use rescind_named_pipe::{NamedPipeListener, NamedPipeTransport, PipeAddress, PipeError};
use tokio::io::AsyncWriteExt as _;

use crate::common::{STARTS, TempPath, accept, event, open, pair, passes};

async fn works(place: &TempPath, listener: &mut NamedPipeListener) {
    let mut near = open(NamedPipeTransport::new(place.address())).await.unwrap();
    let mut far = accept(listener).await.unwrap();
    passes(&mut near, &mut far, "{\"to\":\"the listener\"}").await;
    passes(&mut far, &mut near, "{\"to\":\"the client\"}").await;
    let ours = format!("process {}", std::process::id());
    assert_eq!((near.meta.peer.as_deref(), far.meta.peer.as_deref()), (Some(&*ours), Some(&*ours)));
}

fn mode(file: &Path) -> u32 {
    fs::symlink_metadata(file).unwrap().permissions().mode() & 0o777
}

fn files(place: &TempPath) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(place)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

#[tokio::test]
async fn the_socket_has_mode_0600_while_it_listens_and_is_removed_after() {
    let place = TempPath::new();
    let mut listener = NamedPipeListener::bind(&place.address()).await.unwrap();
    assert_eq!(files(&place), ["agent.sock", "agent.sock.lock"]);
    assert_eq!((mode(&place.file()), mode(place.as_ref())), (0o600, 0o700));
    assert_eq!(mode(&place.as_ref().join("agent.sock.lock")), 0o600);
    assert_eq!(listener.endpoint().0, format!("pipe:{}", place.file().display()));
    works(&place, &mut listener).await;
    drop(listener);
    assert!(files(&place).is_empty(), "{:?}", files(&place));
}

#[tokio::test]
async fn a_server_that_restarts_takes_over_the_socket_it_left_behind() {
    let place = TempPath::new();
    // A killed process leaves a socket without a listener and a lock file without a lock.
    drop(UnixListener::bind(place.file()).unwrap());
    fs::write(place.as_ref().join("agent.sock.lock"), "").unwrap();
    let stale = fs::symlink_metadata(place.file()).unwrap().ino();
    let error = open(NamedPipeTransport::new(place.address())).await.unwrap_err().to_string();
    assert!(error.contains("agent.sock") && error.contains("refused"), "{error}");

    let mut listener = NamedPipeListener::bind(&place.address()).await.unwrap();
    works(&place, &mut listener).await;
    drop(listener);
    assert!(files(&place).is_empty(), "{stale}: {:?}", files(&place));
}

#[tokio::test]
async fn a_second_listener_fails_with_path_in_use_and_the_first_continues() {
    let place = TempPath::new();
    let mut first = NamedPipeListener::bind(&place.address()).await.unwrap();
    for _ in 0..3 {
        let error = NamedPipeListener::bind(&place.address()).await.unwrap_err();
        assert!(matches!(&error, PipeError::InUse { path } if *path == place.file()), "{error:?}");
        assert!(error.to_string().contains("in use"), "{error}");
    }
    works(&place, &mut first).await;
    drop(first);
    let mut next = NamedPipeListener::bind(&place.address()).await.unwrap();
    works(&place, &mut next).await;
}

#[tokio::test]
async fn of_many_concurrent_binds_of_one_path_exactly_one_succeeds() {
    let place = TempPath::new();
    drop(UnixListener::bind(place.file()).unwrap());
    let wants = (0..32).map(|_| {
        let address = place.address();
        tokio::spawn(async move { NamedPipeListener::bind(&address).await })
    });
    let mut got = Vec::new();
    for want in wants.collect::<Vec<_>>() {
        match want.await.unwrap() {
            Ok(listener) => got.push(listener),
            Err(error) => assert!(matches!(error, PipeError::InUse { .. }), "{error:?}"),
        }
    }
    assert_eq!(got.len(), 1);
    works(&place, &mut got[0]).await;
}

#[tokio::test]
async fn another_programs_living_listener_is_not_displaced() {
    let place = TempPath::new();
    let other = UnixListener::bind(place.file()).unwrap();
    let error = NamedPipeListener::bind(&place.address()).await.unwrap_err();
    assert!(matches!(error, PipeError::InUse { .. }), "{error:?}");
    assert_eq!(files(&place), ["agent.sock"], "it is there, and our lock is not");
    drop(other);
}

#[tokio::test]
async fn a_file_that_is_not_a_socket_is_not_removed() {
    let place = TempPath::new();
    fs::write(place.file(), "precious").unwrap();
    let error = NamedPipeListener::bind(&place.address()).await.unwrap_err();
    assert!(matches!(error, PipeError::NotASocket { .. }), "{error:?}");
    assert_eq!(fs::read_to_string(place.file()).unwrap(), "precious");

    fs::remove_file(place.file()).unwrap();
    std::os::unix::fs::symlink(place.as_ref().join("elsewhere"), place.file()).unwrap();
    let error = NamedPipeListener::bind(&place.address()).await.unwrap_err();
    assert!(matches!(error, PipeError::NotASocket { .. }), "{error:?}");
}

#[tokio::test]
async fn a_socket_that_replaced_ours_is_not_removed() {
    let place = TempPath::new();
    let listener = NamedPipeListener::bind(&place.address()).await.unwrap();
    fs::rename(place.file(), place.as_ref().join("moved")).unwrap();
    let other = UnixListener::bind(place.file()).unwrap();
    drop(listener);
    assert_eq!(files(&place), ["agent.sock", "moved"]);
    drop(other);
}

#[tokio::test]
async fn a_directory_that_others_can_look_into_is_refused() {
    for wrong in [0o755, 0o750, 0o777, 0o701, 0o500] {
        let place = TempPath::with_mode(wrong);
        let error = NamedPipeListener::bind(&place.address()).await.unwrap_err();
        assert!(matches!(error, PipeError::Directory { .. }), "{error:?}");
        let text = error.to_string();
        assert!(text.contains(&format!("has mode {wrong:04o}")) && text.contains("0700"), "{text}");
        assert!(files(&place).is_empty());
    }
}

#[tokio::test]
async fn a_directory_behind_a_symbolic_link_or_missing_is_refused() {
    let place = TempPath::new();
    let link = place.as_ref().join("link");
    std::os::unix::fs::symlink(place.as_ref(), &link).unwrap();
    let error = NamedPipeListener::bind(&PipeAddress::path(link.join("a"))).await.unwrap_err();
    assert!(matches!(error, PipeError::Directory { .. }), "{error:?}");
    let missing = PipeAddress::path(place.as_ref().join("no/agent"));
    let error = NamedPipeListener::bind(&missing).await.unwrap_err().to_string();
    assert!(error.contains("No such file"), "{error}");
}

#[tokio::test]
async fn a_path_too_long_for_a_socket_is_an_error_that_leaves_nothing() {
    let place = TempPath::new();
    let long = PipeAddress::path(place.as_ref().join("x".repeat(120)));
    let error = NamedPipeListener::bind(&long).await.unwrap_err().to_string();
    assert!(error.contains("could not listen on"), "{error}");
    assert!(files(&place).is_empty());
    assert!(open(NamedPipeTransport::new(long)).await.is_err());
}

#[tokio::test]
async fn a_name_needs_no_directory_made_before() {
    let address = PipeAddress::name(&format!("rescind-test-{}", std::process::id())).unwrap();
    let mut listener = NamedPipeListener::bind(&address).await.unwrap();
    let directory = address.file().parent().unwrap().to_owned();
    assert_eq!(mode(&directory), 0o700);
    let mut near = open(NamedPipeTransport::new(address.clone())).await.unwrap();
    let mut far = accept(&mut listener).await.unwrap();
    passes(&mut near, &mut far, "{}").await;
    drop(listener);
    assert!(!address.file().exists());
}

#[tokio::test]
async fn a_client_waits_for_room_in_a_full_queue() {
    let place = TempPath::new();
    // A queue of one, which another program may request.
    let socket = rustix::net::socket(rustix::net::AddressFamily::UNIX, rustix::net::SocketType::STREAM, None);
    let socket = socket.unwrap();
    rustix::net::bind(&socket, &rustix::net::SocketAddrUnix::new(place.file()).unwrap()).unwrap();
    rustix::net::listen(&socket, 0).unwrap();
    let other = UnixListener::from(socket);
    let first = open(NamedPipeTransport::new(place.address())).await.unwrap();
    let second = tokio::spawn(open(NamedPipeTransport::new(place.address())));
    tokio::task::yield_now().await;
    assert!(!second.is_finished(), "its queue is full");
    let in_use = NamedPipeListener::bind(&place.address()).await.unwrap_err();
    assert!(matches!(in_use, PipeError::InUse { .. }), "{in_use:?}");
    let accepted = other.accept().unwrap();
    second.await.unwrap().unwrap();
    drop((first, accepted));
}

#[tokio::test]
async fn a_peer_that_goes_after_it_ended_its_output_ends_the_connection() {
    let _no_process_starts = STARTS.read().await;
    let (mut far, mut link) = pair().await;
    far.write_all(b"{}\n").await.unwrap();
    far.shutdown().await.unwrap();
    assert!(matches!(event(&mut link).await, Some(Ok(TransportEvent::Message(_)))));
    assert!(matches!(event(&mut link).await, Some(Ok(TransportEvent::HalfClosed))));
    let next = poll_fn(|cx| std::task::Poll::Ready(link.rx.as_mut().poll_event(cx).is_pending())).await;
    assert!(next, "it still reads");
    drop(far);
    assert!(event(&mut link).await.is_none());
}
