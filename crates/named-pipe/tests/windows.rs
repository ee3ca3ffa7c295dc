//! What only the pipes of Windows have: names that are no files, instances, and a listener that another program made.

use rescind_named_pipe::{NamedPipeListener, NamedPipeTransport, PipeAddress, PipeError};
use rescind_testkit::support::in_time;
use tokio::net::windows::named_pipe::{NamedPipeServer, ServerOptions};
use tokio::time::Instant;

use crate::common::{TempPath, accept, names_are_exclusive, open, passes};

/// The listener of another program, with one instance.
fn other_program(place: &TempPath) -> NamedPipeServer {
    ServerOptions::new().first_pipe_instance(true).max_instances(1).create(place.file()).unwrap()
}

#[tokio::test]
async fn a_name_that_another_program_took_first_is_in_use() {
    if !names_are_exclusive("a_name_that_another_program_took_first_is_in_use") {
        return;
    }
    let place = TempPath::new();
    let squatter = ServerOptions::new().create(place.file()).unwrap();
    let error = NamedPipeListener::bind(&place.address()).await.unwrap_err();
    assert!(matches!(&error, PipeError::InUse { path } if *path == place.file()), "{error:?}");
    drop(squatter);
    let mut listener = NamedPipeListener::bind(&place.address()).await.unwrap();
    let mut near = open(NamedPipeTransport::new(place.address())).await.unwrap();
    let mut far = accept(&mut listener).await.unwrap();
    passes(&mut near, &mut far, "{}").await;
}

#[tokio::test]
async fn a_client_waits_for_a_free_instance() {
    let place = TempPath::new();
    let other = other_program(&place);
    let first = open(NamedPipeTransport::new(place.address())).await.unwrap();
    let second = tokio::spawn(open(NamedPipeTransport::new(place.address())));
    tokio::task::yield_now().await;
    assert!(!second.is_finished(), "its only instance is taken");
    other.connect().await.unwrap();
    drop(first);
    other.disconnect().unwrap();
    in_time("the second client at the listener", other.connect()).await.unwrap();
    in_time("the second client", second).await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_client_gives_up_after_five_seconds_without_a_free_instance() {
    let place = TempPath::new();
    let _other = other_program(&place);
    let _first = open(NamedPipeTransport::new(place.address())).await.unwrap();
    let since = Instant::now();
    let error = open(NamedPipeTransport::new(place.address())).await.unwrap_err();
    assert!((5..6).contains(&since.elapsed().as_secs()), "{:?}", since.elapsed());
    assert!(error.to_string().contains("could not connect to"), "{error}");
}

/// A hundred clients connect before the listener takes the first.
#[tokio::test]
async fn clients_that_come_at_once_are_all_served() {
    const CLIENTS: usize = 100;
    let place = TempPath::new();
    let mut listener = NamedPipeListener::bind(&place.address()).await.unwrap();
    let address = place.address();
    let clients: Vec<_> =
        (0..CLIENTS).map(|_| tokio::spawn(open(NamedPipeTransport::new(address.clone())))).collect();
    let mut served = Vec::new();
    for _ in 0..CLIENTS {
        served.push(in_time("a client", accept(&mut listener)).await.unwrap());
    }
    for client in clients {
        in_time("a connection", client).await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn a_client_over_the_network_is_refused() {
    let name = format!("rescind-network-{}", std::process::id());
    let address = PipeAddress::name(&name).unwrap();
    let _listener = NamedPipeListener::bind(&address).await.unwrap();
    for host in ["localhost", "127.0.0.1"] {
        let from_afar = PipeAddress::path(format!(r"\\{host}\pipe\{name}"));
        assert!(open(NamedPipeTransport::new(from_afar)).await.is_err(), "{host}");
    }
}

#[tokio::test]
async fn a_path_that_is_no_pipe_is_refused_and_left_as_it_is() {
    let file = std::env::temp_dir().join(format!("rescind-no-pipe-{}", std::process::id()));
    std::fs::write(&file, "precious").unwrap();
    let error = NamedPipeListener::bind(&PipeAddress::path(&file)).await.unwrap_err().to_string();
    assert!(error.contains("rescind-no-pipe"), "{error}");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "precious");
    std::fs::remove_file(&file).unwrap();
}

#[tokio::test]
async fn names_with_spaces_and_other_letters_are_names() {
    for name in ["an agent", "agent-\u{e9}\u{4e2d}", "a.b-c_d"] {
        let address = PipeAddress::name(&format!("{name}-{}", std::process::id())).unwrap();
        let mut listener = NamedPipeListener::bind(&address).await.unwrap();
        let mut near = open(NamedPipeTransport::new(address)).await.unwrap();
        let mut far = accept(&mut listener).await.unwrap();
        passes(&mut near, &mut far, "{}").await;
    }
}
