//! Faults of nodes, of the network between them and of their clocks.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use std::{env, fs, io};

use rescind_testkit::support::{in_time, within};
use serde_json::json;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinHandle, JoinSet};

use super::client::Session;
use super::nodes::{Backend, NODES, Node, Replicas, Setup};
use super::trial::{poll_until, report};

// Faults of nodes: what is lost, and how soon it is known.

/// The time in which the loss of a node must be known to each request.
const KNOWN: Duration = Duration::from_secs(11);

/// A node that is killed: its sessions are gone at once, and requests under way end.
pub(crate) async fn a_killed_node_loses_its_sessions_and_nothing_else(backend: Backend) {
    let mut replicas = Replicas::start(backend).await;
    let all = replicas.addresses();
    let (lost, kept) = (replicas.session(0).await, replicas.session(2).await);
    let kept_running = kept.begin(all[1], 10, "test/wait", &json!({})).await.unwrap();
    let running = lost.begin(all[1], 10, "test/wait", &json!({})).await.unwrap();
    assert_eq!(running.status, 200);
    let mut events = lost.events(all[2], None).await;
    assert_eq!(events.status, 200);
    // Not begun yet: its head comes with its answer or after a while.
    let _key = lost.key(all[2], 10).await;
    replicas.nodes[0].kill().await;
    let killed = Instant::now();
    for through in &all[1..] {
        // A request that is sent before its node has seen the end of the connection may have begun, as far as is known.
        let is_gone = async || match lost.status(*through).await {
            404 => true,
            502 => false,
            status => panic!("a session of a dead node got {status}"),
        };
        within(Duration::from_secs(2), "404 at once", poll_until("404", is_gone)).await;
    }
    report(backend, "a killed node: 404 for its sessions", killed.elapsed());
    // A response whose head was sent ends without an answer, which says that it was lost.
    let answer = within(KNOWN, "the end of a request under way", running.answer(10)).await;
    assert!(matches!(answer, Err(_) | Ok(None)), "{answer:?}");
    let end = async { while let Ok(Some(_)) = events.event().await {} };
    within(KNOWN, "the end of its event stream", end).await;
    report(backend, "a killed node: requests under way have ended", killed.elapsed());
    assert_eq!(kept.status(all[1]).await, 200);
    kept.cancel(all[1], 10).await;
    assert_eq!(in_time("its end", kept_running.answer(10)).await.unwrap(), None);
}

/// A node that is suspended: nothing hangs, and it works again when it goes on.
pub(crate) async fn a_stopped_node_hangs_nobody_and_comes_back(backend: Backend) {
    let replicas = Replicas::start(backend).await;
    let all = replicas.addresses();
    let (session, other) = (replicas.session(0).await, replicas.session(1).await);
    assert_eq!(session.status(all[1]).await, 200, "a connection between the nodes is open");
    let running = session.begin(all[1], 10, "test/wait", &json!({})).await.unwrap();
    replicas.nodes[0].stop();
    let stopped = Instant::now();
    let echo = async |through| {
        let begun = Instant::now();
        let response = session.begin(through, 11, "test/echo", &json!({})).await.unwrap();
        (response.status, begun.elapsed())
    };
    let under_way = within(KNOWN, "the end of a request under way", running.answer(10));
    let known = async { (under_way.await, stopped.elapsed()) };
    let forwarded = async { tokio::join!(echo(all[1]), echo(all[2])) };
    let ((answer, took), ((one, first), (two, second))) =
        Box::pin(within(Duration::from_secs(15), "requests for a stopped node", async {
            tokio::join!(known, forwarded)
        }))
        .await;
    assert!(matches!(answer, Err(_) | Ok(None)), "{answer:?}");
    for (status, took) in [(one, first), (two, second)] {
        assert!([404, 502, 503].contains(&status), "{status}");
        assert!(took < KNOWN, "{took:?}");
    }
    report(backend, "a stopped node: requests under way have ended", took);
    report(backend, "a stopped node: a later request was refused", first.max(second));
    assert_eq!(other.status(all[2]).await, 200, "the others work");
    replicas.nodes[0].go_on();
    let back = poll_until("the session is reached again", async || session.status(all[1]).await == 200).await;
    report(backend, "a stopped node that goes on: reached again", back);
}

/// A node that starts again under its name at another port: former sessions are unknown, and new ones work.
pub(crate) async fn a_restarted_node_does_not_answer_for_its_former_life(backend: Backend) {
    let mut replicas = Replicas::start(backend).await;
    let former = replicas.session(0).await;
    let before = replicas.nodes[0].address;
    assert_eq!(former.status(replicas.nodes[1].address).await, 200);
    replicas.nodes[0].kill().await;
    let killed = Instant::now();
    replicas.start_again(0).await;
    let all = replicas.addresses();
    assert_ne!(before, all[0], "it has another port");
    let started = Instant::now();
    let new = replicas.session(0).await;
    poll_until("the new session is reached", async || new.status(all[1]).await == 200).await;
    report(backend, "a restarted node at another port: reached after its start", started.elapsed());
    report(backend, "a restarted node at another port: reached after its kill", killed.elapsed());
    for through in &all {
        assert_eq!(former.status(*through).await, 404, "it was of the former life");
        assert_eq!(new.status(*through).await, 200);
    }
}

/// A node that leaves as it should is unknown at once.
pub(crate) async fn a_node_that_leaves_is_gone_at_once(backend: Backend) {
    let mut replicas = Replicas::start(backend).await;
    let all = replicas.addresses();
    let (gone, kept) = (replicas.session(0).await, replicas.session(1).await);
    assert_eq!(gone.status(all[2]).await, 200);
    replicas.nodes[0].terminate().await;
    let status = within(Duration::from_secs(2), "404 at once", gone.status(all[2])).await;
    assert_eq!(status, 404);
    assert_eq!(kept.status(all[2]).await, 200);
}

// Faults of the network between nodes: the address that a node advertises is that of a proxy.

/// Three nodes, of which the first advertises this proxy.
async fn behind(backend: Backend, proxy: &Proxy) -> Replicas {
    let mut replicas = Replicas::without_nodes(backend, Setup::default());
    start_first(&mut replicas, proxy).await;
    for name in &NODES[1..] {
        let node = Node::start(name, replicas.command(name, &[])).await.unwrap();
        replicas.nodes.push(node);
    }
    list(&replicas, proxy);
    replicas
}

/// Starts the first node, which advertises this proxy.
async fn start_first(replicas: &mut Replicas, proxy: &Proxy) {
    let url = format!("http://127.0.0.1:{}/rpc", proxy.port);
    let node = Node::start(NODES[0], replicas.command(NODES[0], &["--advertise", &url])).await.unwrap();
    proxy.set_server(node.address);
    if replicas.nodes.is_empty() { replicas.nodes.push(node) } else { replicas.nodes[0] = node }
}

fn list(replicas: &Replicas, proxy: &Proxy) {
    let mut lines = format!("n1=http://127.0.0.1:{}/rpc\n", proxy.port);
    for (name, address) in NODES.into_iter().zip(replicas.addresses()).skip(1) {
        let _ = writeln!(lines, "{name}=http://{address}/rpc");
    }
    replicas.write_lines(&lines);
}

/// The others do not reach a node any more, and clients do.
pub(crate) async fn a_partition_between_nodes_hangs_nobody(backend: Backend) {
    let proxy = Proxy::start_before_its_server().await;
    let replicas = behind(backend, &proxy).await;
    let all = replicas.addresses();
    let (session, other) = (replicas.session(0).await, replicas.session(1).await);
    assert_eq!(session.status(all[1]).await, 200, "a connection between the nodes is open");
    let running = session.begin(all[1], 10, "test/wait", &json!({})).await.unwrap();
    proxy.cut();
    let cut = Instant::now();
    let limit = Duration::from_secs(11);
    let answer = within(limit, "the end of a request under way", running.answer(10)).await;
    assert!(matches!(answer, Err(_) | Ok(None)), "{answer:?}");
    report(backend, "partition: requests under way have ended", cut.elapsed());
    let asked = Instant::now();
    let status = within(limit, "an answer", session.begin(all[2], 11, "test/echo", &json!({}))).await;
    let status = status.unwrap().status;
    assert!([502, 503].contains(&status), "{status}");
    report(backend, "partition: a later request was refused", asked.elapsed());
    assert_eq!(session.status(all[0]).await, 200, "clients that reach it are served");
    assert_eq!(other.status(all[2]).await, 200, "the others reach each other");
    assert_eq!(other.status(all[0]).await, 200, "it reaches the others");
    proxy.mend();
    let back = poll_until("it is reached again", async || session.status(all[1]).await == 200).await;
    report(backend, "partition mended: reached again", back);
}

/// The owner gets requests and its answers are lost. Then the connections break. No request runs twice.
pub(crate) async fn a_request_whose_answer_is_lost_runs_once(backend: Backend) {
    let proxy = Proxy::start_before_its_server().await;
    let replicas = behind(backend, &proxy).await;
    let all = replicas.addresses();
    let session = replicas.session(0).await;
    let started = async || {
        let stats = session.ask(all[0], 900, "test/stats", json!({})).await;
        stats["result"]["started"].as_u64().unwrap()
    };
    for (id, is_connected) in [(10, true), (11, false)] {
        if is_connected {
            assert_eq!(session.status(all[1]).await, 200);
        }
        let before = started().await;
        proxy.cut_answers();
        let (params, id_text) = (json!({ "value": id }), id.to_string());
        let sent = session.begin(all[1], id, "test/echo", &params);
        let broken = async {
            if is_connected {
                // `test/stats` is not among the handlers that it counts.
                poll_until("the request has arrived", async || started().await > before).await;
            }
            proxy.break_connections();
        };
        let (response, ()) =
            Box::pin(within(Duration::from_secs(11), "an answer", async { tokio::join!(sent, broken) }))
                .await;
        let status = response.unwrap().status;
        let expected: &[u16] = if is_connected { &[502] } else { &[502, 503] };
        assert!(expected.contains(&status), "{status}");
        proxy.mend();
        poll_until("it is reached again", async || session.status(all[1]).await == 200).await;
        let ran = session.ask(all[0], 901, "test/handlers", json!({})).await;
        let own = ran["result"]["handlers"].as_array().unwrap().iter().filter(|one| one["id"] == *id_text);
        assert_eq!(own.count(), usize::from(is_connected), "{ran}");
        proxy.break_connections();
    }
}

/// A node that starts again behind another address is reached there.
pub(crate) async fn a_node_with_another_address_is_found(backend: Backend) {
    let proxy = Proxy::start_before_its_server().await;
    let mut replicas = behind(backend, &proxy).await;
    let former = replicas.session(0).await;
    let all = replicas.addresses();
    assert_eq!(former.status(all[1]).await, 200);
    replicas.nodes[0].kill().await;
    drop(proxy);
    let another = Proxy::start_before_its_server().await;
    start_first(&mut replicas, &another).await;
    list(&replicas, &another);
    let moved = Instant::now();
    let session: Session = replicas.session(0).await;
    for through in &all[1..] {
        poll_until("it is reached", async || session.status(*through).await == 200).await;
        assert_eq!(former.status(*through).await, 404);
    }
    report(backend, "another address: reached there", moved.elapsed());
}

// Nodes whose time of day is wrong, and changes while requests run: what the library `libfaketime` shows them.

/// The variable that names the library.
pub(crate) const VARIABLE: &str = "RESCIND_FAKETIME";
const HOUR: i64 = 3600;
/// Longer than a node without its heartbeat is known, which is 10 s and what the engine adds.
const LIFE: Duration = Duration::from_secs(14);

/// The time of day that a node sees: it differs from ours by what is written into a file.
struct Clock {
    file: PathBuf,
}

impl Clock {
    /// Starts a node whose clock differs from ours by so many seconds.
    async fn start(replicas: &mut Replicas, name: &str, offset: i64) -> Self {
        let clock = Self { file: replicas.file(name, "").into() };
        clock.set(offset);
        let command = clock.shown_to(replicas.command(name, &[]));
        let node = Node::start(name, command).await.unwrap();
        let maps = fs::read_to_string(format!("/proc/{}/maps", node.process_id())).unwrap();
        assert!(maps.contains("libfaketime"), "the node has loaded the library");
        replicas.nodes.push(node);
        clock
    }

    fn shown_to(&self, mut command: Command) -> Command {
        command.env("LD_PRELOAD", env::var_os(VARIABLE).unwrap());
        command.env("FAKETIME_TIMESTAMP_FILE", &self.file).env("FAKETIME_NO_CACHE", "1");
        // Waits are measured by the other clock, which nobody sets.
        command.env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
        command
    }

    /// Sets it. A program that asks for the time of day sees the change.
    fn set(&self, offset: i64) {
        fs::write(&self.file, format!("{offset:+}")).unwrap();
        let mut date = Command::new("date");
        date.arg("+%s");
        let output = self.shown_to(date).output().unwrap();
        let shown: i64 = String::from_utf8_lossy(&output.stdout).trim().parse().unwrap();
        let ours = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs().cast_signed();
        assert!((shown - ours - offset).abs() < 10, "it shows {shown}, ours {ours}, wanted {offset:+}");
    }
}

/// Requests and cancels for each node through each other one, and cancels of an operator.
async fn works(replicas: &Replicas, first_id: u64) {
    let all = replicas.addresses();
    let mut id = first_id;
    for owner in 0..all.len() {
        let session = replicas.session(owner).await;
        for through in &all {
            let running = session.begin(*through, id, "test/wait", &json!({})).await.unwrap();
            session.cancel(*through, id).await;
            assert_eq!(in_time("its end", running.answer(id)).await.unwrap(), None);
            id += 1;
        }
        let running = session.begin(all[owner], id, "test/wait", &json!({})).await.unwrap();
        let key = session.key(all[owner], id).await;
        let said = replicas.cancel(&key, &[]).await;
        assert_eq!(said.status.code(), Some(0), "{said:?}");
        let answer = in_time("the answer", running.answer(id)).await.unwrap().expect("it was not answered");
        assert!(answer["error"]["message"].as_str().unwrap().contains("operator"), "{answer}");
        id += 1;
    }
}

/// A node is an hour early and one an hour late. Then the clock of one jumps by two hours, back and forth.
pub(crate) async fn a_wrong_clock_has_no_effect(backend: Backend) {
    let mut replicas = Replicas::without_nodes(backend, Setup::default());
    let early = Clock::start(&mut replicas, NODES[0], HOUR).await;
    let _late = Clock::start(&mut replicas, NODES[1], -HOUR).await;
    let right = Node::start(NODES[2], replicas.command(NODES[2], &[])).await.unwrap();
    replicas.nodes.push(right);
    replicas.write_list();
    let all = replicas.addresses();
    let sessions = [replicas.session(0).await, replicas.session(1).await, replicas.session(2).await];
    for session in &sessions {
        for through in &all {
            poll_until("the nodes know each other", async || session.status(*through).await == 200).await;
        }
    }
    works(&replicas, 100).await;
    let running = sessions[0].begin(all[1], 10, "test/wait", &json!({})).await.unwrap();
    let since = Instant::now();
    let mut asked = 0;
    // Its entry in the engine lives for less, so it must be written again by a clock that is wrong.
    while since.elapsed() < LIFE {
        early.set(if asked % 2 == 0 { -HOUR } else { HOUR });
        for (owner, session) in sessions.iter().enumerate() {
            for through in &all {
                assert_eq!(
                    session.status(*through).await,
                    200,
                    "the session of {} at {through}",
                    NODES[owner]
                );
                asked += 1;
            }
        }
        // Times to live are kept by the engine, another process, in real time: it has to pass.
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    early.set(-HOUR);
    works(&replicas, 200).await;
    sessions[0].cancel(all[2], 10).await;
    assert_eq!(in_time("its end", running.answer(10)).await.unwrap(), None, "it ran meanwhile");
    report(backend, &format!("a clock that jumps: {asked} requests, none refused, in"), since.elapsed());
}

// A proxy of TCP that can delay, or drop everything as a broken network does.

/// What passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Passes {
    All,
    ToTheServer,
    Nothing,
}

/// A proxy on a free port. It ends when it is dropped.
pub(crate) struct Proxy {
    pub(crate) port: u16,
    to: Arc<Mutex<SocketAddr>>,
    passes: watch::Sender<Passes>,
    /// How often all connections were broken.
    breaks: watch::Sender<u64>,
    task: JoinHandle<()>,
}

impl Proxy {
    /// A proxy before this address. Each byte arrives `delay` later than it was sent.
    pub(crate) async fn start(to: SocketAddr, delay: Duration) -> Self {
        let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = socket.local_addr().unwrap().port();
        let (passes, _) = watch::channel(Passes::All);
        let (breaks, _) = watch::channel(0);
        let to = Arc::new(Mutex::new(to));
        let task = tokio::spawn(accept(socket, Arc::clone(&to), delay, passes.clone(), breaks.clone()));
        Self { port, to, passes, breaks, task }
    }

    /// A proxy whose address is needed before that of its server.
    pub(crate) async fn start_before_its_server() -> Self {
        Self::start(SocketAddr::from(([127, 0, 0, 1], 1)), Duration::ZERO).await
    }

    /// New connections go to this address.
    pub(crate) fn set_server(&self, to: SocketAddr) {
        *self.to.lock().unwrap_or_else(PoisonError::into_inner) = to;
    }

    /// Drops all bytes from now on. Connections stay open, and new ones are accepted by nobody that reads.
    pub(crate) fn cut(&self) {
        self.passes.send_replace(Passes::Nothing);
    }

    /// From now on passes what clients send, and nothing back.
    pub(crate) fn cut_answers(&self) {
        self.passes.send_replace(Passes::ToTheServer);
    }

    /// Ends all connections.
    pub(crate) fn break_connections(&self) {
        self.breaks.send_modify(|breaks| *breaks += 1);
    }

    /// Passes bytes again. Those that were held meanwhile arrive now, as a network repeats them.
    pub(crate) fn mend(&self) {
        self.passes.send_replace(Passes::All);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn accept(
    socket: TcpListener,
    to: Arc<Mutex<SocketAddr>>,
    delay: Duration,
    passes: watch::Sender<Passes>,
    breaks: watch::Sender<u64>,
) {
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            Some(_) = connections.join_next() => continue,
            accepted = socket.accept() => accepted,
        };
        let Ok((client, _)) = accepted else { return };
        let to = *to.lock().unwrap_or_else(PoisonError::into_inner);
        let (passes, mut breaks) = (passes.subscribe(), breaks.subscribe());
        connections.spawn(async move {
            tokio::select! {
                _ended = pass(client, to, delay, passes) => {}
                _broken = breaks.changed() => {}
            }
        });
    }
}

/// Passes both directions until either ends.
async fn pass(
    client: TcpStream,
    to: SocketAddr,
    delay: Duration,
    mut passes: watch::Receiver<Passes>,
) -> io::Result<()> {
    passes.wait_for(|passes| *passes != Passes::Nothing).await.map_err(io::Error::other)?;
    let server = TcpStream::connect(to).await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (client_in, client_out) = client.into_split();
    let (server_in, server_out) = server.into_split();
    tokio::select! {
        ended = one_way(client_in, server_out, delay, passes.clone(), |passes| passes != Passes::Nothing) => ended,
        ended = one_way(server_in, client_out, delay, passes, |passes| passes == Passes::All) => ended,
    }
}

async fn one_way(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    delay: Duration,
    mut passes: watch::Receiver<Passes>,
    is_open: fn(Passes) -> bool,
) -> io::Result<()> {
    let (sender, mut pieces) = mpsc::channel::<(tokio::time::Instant, Vec<u8>)>(1024);
    let reading = async {
        let mut buffer = vec![0; 16 * 1024];
        loop {
            let count = from.read(&mut buffer).await?;
            if count == 0 {
                return Ok(());
            }
            let piece = (tokio::time::Instant::now() + delay, buffer[..count].to_vec());
            sender.send(piece).await.map_err(io::Error::other)?;
        }
    };
    let writing = async {
        while let Some((due, piece)) = pieces.recv().await {
            tokio::time::sleep_until(due).await;
            passes.wait_for(|passes| is_open(*passes)).await.map_err(io::Error::other)?;
            to.write_all(&piece).await?;
        }
        Ok(())
    };
    tokio::select! {
        ended = reading => ended,
        ended = writing => ended,
    }
}
