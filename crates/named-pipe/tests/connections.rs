//! What holds of pipes on every system: their names, many clients, large frames, and how a connection ends because a side is
//! gone.

use std::future::poll_fn;
use std::process::{Command, Stdio};

use rescind_core::{CloseReason, TransportEvent};
use rescind_named_pipe::{NamedPipeListener, NamedPipeTransport, PipeAddress, PipeError};
use rescind_testkit::support::{frames, in_time};
use tokio::io::AsyncWriteExt as _;

use crate::common::{STARTS, TempPath, accept, event, names_are_exclusive, open, pair, passes};

/// The environment variable of the process with the pipe to which it connects.
const PIPE: &str = "RESCIND_TEST_PIPE";

#[tokio::test]
async fn a_connection_outlives_its_listener() {
    let place = TempPath::new();
    let mut listener = NamedPipeListener::bind(&place.address()).await.unwrap();
    let mut near = open(NamedPipeTransport::new(place.address())).await.unwrap();
    let mut far = accept(&mut listener).await.unwrap();
    drop(listener);
    passes(&mut near, &mut far, "{}").await;
}

#[tokio::test]
async fn a_thousand_connections_are_open_at_once() {
    const MANY: usize = 1_000;
    // Both ends of each connection are in this process.
    rescind_testkit::allow_open_files(2 * MANY as u64 + 100).unwrap();
    let place = TempPath::new();
    let mut listener = NamedPipeListener::bind(&place.address()).await.unwrap();
    let address = place.address();
    let clients = tokio::spawn(async move {
        let mut links = Vec::new();
        for _ in 0..MANY {
            links.push(open(NamedPipeTransport::new(address.clone())).await.unwrap());
        }
        links
    });
    let mut served = Vec::new();
    for _ in 0..MANY {
        served.push(accept(&mut listener).await.unwrap());
    }
    let mut links = clients.await.unwrap();
    for (number, (near, far)) in links.iter_mut().zip(&mut served).enumerate() {
        passes(near, far, &format!("{{\"number\":{number}}}")).await;
    }
}

#[tokio::test]
async fn the_error_for_a_missing_pipe_contains_its_path() {
    let place = TempPath::new();
    let error = open(NamedPipeTransport::new(place.address())).await.unwrap_err().to_string();
    assert!(error.contains("could not connect to") && error.contains("agent.sock"), "{error}");
}

#[tokio::test]
async fn a_peer_that_is_gone_ends_the_connection_although_nothing_is_written() {
    let _no_process_starts = STARTS.read().await;
    let (far, mut link) = pair().await;
    drop(far);
    assert!(event(&mut link).await.is_none(), "a peer that is gone is no peer that only ended its output");
}

#[tokio::test]
async fn frames_sent_before_a_disconnect_are_read_first() {
    let _no_process_starts = STARTS.read().await;
    let (mut far, mut link) = pair().await;
    far.write_all(b"{\"n\":1}\n{\"n\":2}\n").await.unwrap();
    drop(far);
    for text in ["{\"n\":1}", "{\"n\":2}"] {
        match event(&mut link).await {
            Some(Ok(TransportEvent::Message(inbound))) => assert_eq!(inbound.body, text),
            other => panic!("{other:?}"),
        }
    }
    assert!(event(&mut link).await.is_none());
}

#[tokio::test]
async fn a_name_is_free_again_when_its_listener_is_dropped() {
    if !names_are_exclusive("a_name_is_free_again_when_its_listener_is_dropped") {
        return;
    }
    let place = TempPath::new();
    for _ in 0..20 {
        let mut listener = NamedPipeListener::bind(&place.address()).await.unwrap();
        let second = NamedPipeListener::bind(&place.address()).await.unwrap_err();
        assert!(matches!(&second, PipeError::InUse { path } if *path == place.file()), "{second:?}");
        let mut near = open(NamedPipeTransport::new(place.address())).await.unwrap();
        let mut far = accept(&mut listener).await.unwrap();
        passes(&mut near, &mut far, "{}").await;
    }
}

#[tokio::test]
async fn of_many_listeners_that_start_at_once_one_gets_the_name() {
    if !names_are_exclusive("of_many_listeners_that_start_at_once_one_gets_the_name") {
        return;
    }
    let place = TempPath::new();
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
}

#[tokio::test]
async fn a_pipe_is_reached_by_its_name() {
    let address = PipeAddress::name(&format!("rescind-named-{}", std::process::id())).unwrap();
    let mut listener = NamedPipeListener::bind(&address).await.unwrap();
    let mut near = open(NamedPipeTransport::new(address)).await.unwrap();
    let mut far = accept(&mut listener).await.unwrap();
    passes(&mut near, &mut far, "{}").await;
    passes(&mut far, &mut near, "{}").await;
}

/// Both ways, while nothing reads yet and the buffers of the system are full.
#[tokio::test]
async fn frames_larger_than_the_buffers_of_the_system_pass_whole() {
    let place = TempPath::new();
    let mut listener = NamedPipeListener::bind(&place.address()).await.unwrap();
    let mut near = open(NamedPipeTransport::new(place.address())).await.unwrap();
    let mut far = accept(&mut listener).await.unwrap();
    let large = format!("\"{}\"", "x".repeat(3 * 1024 * 1024));
    let (ours, theirs) = (large.clone(), large.clone());
    let near = tokio::spawn(async move {
        frames::send(&mut near, ours).await.unwrap();
        frames::body(&mut near).await
    });
    let read = frames::body(&mut far).await;
    assert_eq!(read, large);
    frames::send(&mut far, theirs).await.unwrap();
    assert_eq!(in_time("the answer", near).await.unwrap(), large);
}

#[tokio::test]
async fn a_large_frame_before_a_close_arrives_whole_from_either_side() {
    let _no_process_starts = STARTS.read().await;
    for from_listener in [true, false] {
        let place = TempPath::new();
        let mut listener = NamedPipeListener::bind(&place.address()).await.unwrap();
        let near = open(NamedPipeTransport::new(place.address())).await.unwrap();
        let far = accept(&mut listener).await.unwrap();
        let (mut writes, mut reads) = if from_listener { (far, near) } else { (near, far) };
        let large = format!("\"{}\"", "y".repeat(1024 * 1024));
        let sent = large.clone();
        let writes = tokio::spawn(async move {
            frames::send(&mut writes, sent).await.unwrap();
            poll_fn(|cx| writes.tx.as_mut().poll_close(&CloseReason::Normal, cx)).await.unwrap();
        });
        assert_eq!(frames::body(&mut reads).await, large);
        in_time("the close", writes).await.unwrap();
        assert!(event(&mut reads).await.is_none());
    }
}

/// The process that the test below starts. Without the variable it does nothing.
#[test]
fn the_peer_process() {
    let Some(pipe) = std::env::var_os(PIPE) else { return };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let address = PipeAddress::path(std::path::PathBuf::from(pipe));
        let mut link = open(NamedPipeTransport::new(address)).await.unwrap();
        frames::send(&mut link, "{}").await.unwrap();
        std::future::pending::<()>().await;
    });
}

#[tokio::test]
async fn a_peer_process_that_is_killed_ends_the_connection() {
    let place = TempPath::new();
    let mut listener = NamedPipeListener::bind(&place.address()).await.unwrap();
    let starts = STARTS.write().await;
    let mut peer = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "connections::the_peer_process", "--test-threads=1"])
        .env(PIPE, place.file())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    drop(starts);
    let mut link = in_time("the peer", accept(&mut listener)).await.unwrap();
    assert_eq!(frames::body(&mut link).await, "{}");
    peer.kill().unwrap();
    assert!(event(&mut link).await.is_none(), "it is gone");
    peer.wait().unwrap();
}

/// What only the pipes of Windows have: names that are no files, instances, and a listener that another program made.
#[cfg(windows)]
mod on_windows {
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
}
