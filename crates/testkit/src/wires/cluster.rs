//! Three replicas of the fixture, and a balancer that sends each request to the next one.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::Pin;
use std::process::{Stdio, id};
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use rescind_cluster::{Cluster, NodeList, NodeName, Secret};
use rescind_core::{BoxFuture, Capabilities, Endpoint, Link, Listener, Transport, TransportError};
use rescind_http::{HttpClient, HttpListener, ServerBinding};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::Child;

use super::http::Http;
use super::late_connection::late;
use super::options_file::OptionsFile;
use super::{Program, Served, Wire};
use crate::balancer::Balancer;
use crate::vector::Scenario;

/// The names of the replicas.
const NODES: [&str; 3] = ["n1", "n2", "n3"];
/// The time in which a replica must start.
const START: Duration = Duration::from_secs(20);

/// Three replicas that serve a binding.
pub(super) struct Replicas<B, T> {
    program: Program,
    /// The name of the binding on the command line.
    binding: &'static str,
    http: Http<B, T>,
}

impl<B, T> Replicas<B, T> {
    pub(super) fn new(program: &Program, binding: &'static str, http: Http<B, T>) -> Self {
        Self { program: program.clone(), binding, http }
    }
}

impl<B: ServerBinding + Send + Sync, T: Transport + Clone + Sync> Wire for Replicas<B, T> {
    /// The replicas are processes, which know each other by a list in a file.
    fn fixture<'a>(&'a self, scenario: &'a Scenario) -> BoxFuture<'a, Result<Served, String>> {
        Box::pin(async move {
            let list = ListFile::new();
            // A replica reads the list when it starts, and again when it looks for another.
            list.write(std::iter::empty())?;
            let options = OptionsFile::write(scenario)?;
            let replica = |name| self.start(scenario, &list, options.as_ref(), name);
            let [one, two, three] = NODES;
            let replicas = tokio::try_join!(replica(one), replica(two), replica(three))?;
            let replicas = <[Replica; 3]>::from(replicas);
            list.write(NODES.into_iter().zip(&replicas).map(|(name, replica)| (name, replica.address)))?;
            let addresses = replicas.iter().map(|replica| replica.address).collect();
            let balancer = Balancer::start(addresses).await.map_err(|error| error.to_string())?;
            let client = client(&balancer)?;
            let transport = (self.http.client)(client);
            let connect = move || -> BoxFuture<'static, Result<Link, String>> {
                let opening = Box::new(transport.clone()).open();
                Box::pin(async move { opening.await.map_err(|error| error.to_string()) })
            };
            let end = async move {
                drop(balancer);
                for mut replica in replicas {
                    let _ = replica.process.kill().await;
                }
                drop((list, options));
            };
            Ok(Served {
                connect: Box::new(connect),
                many_lines: true,
                half_close: false,
                exit_report: None,
                end: Box::pin(end),
            })
        })
    }

    /// The replicas are listeners in this process, since the scenario acts as the one that is reached.
    fn pair<'a>(&'a self, _: &'a Scenario) -> BoxFuture<'a, Result<(Link, Link), String>> {
        Box::pin(async move {
            let nodes = NodeList::new();
            let mut listeners = Vec::new();
            for name in NODES {
                listeners.push(self.join(name, &nodes).await?);
            }
            let addresses: Result<Vec<_>, _> =
                listeners.iter().map(|(listener, _)| address_of(&listener.endpoint().0)).collect();
            let balancer = Balancer::start(addresses?).await.map_err(|error| error.to_string())?;
            let transport = (self.http.client)(client(&balancer)?);
            let near = Box::new(transport).open().await.map_err(|error| error.to_string())?;
            let traits = Capabilities { opens_exchanges: false, ..near.traits };
            let far = late(Box::pin(AnyOf { listeners, _balancer: balancer }), traits);
            Ok((near, far))
        })
    }
}

impl<B: ServerBinding + Send, T> Replicas<B, T> {
    /// Starts a replica and waits until it listens.
    async fn start(
        &self,
        scenario: &Scenario,
        list: &ListFile,
        options: Option<&OptionsFile>,
        name: &str,
    ) -> Result<Replica, String> {
        let mut command = self.program.process();
        command.args(["fixture", "--dialect", scenario.dialect, "--any-opening", "--node", name]);
        command.args(["--binding", self.binding]);
        command
            .args(["--listen", "http://127.0.0.1:0/", "--cluster"])
            .arg(format!("static:@{}", list.0.display()));
        if let Some(options) = options {
            command.arg("--options").arg(options.path());
        }
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).kill_on_drop(true);
        let mut process = command.spawn().map_err(|error| format!("a replica did not start: {error}"))?;
        let stderr = process.stderr.take().ok_or("a replica has no stderr")?;
        let mut lines = BufReader::new(stderr).lines();
        let listening = async {
            let mut said = String::new();
            while let Ok(Some(line)) = lines.next_line().await {
                if let Some(url) = line.strip_prefix("listening on ") {
                    return address_of(url);
                }
                said.push_str(&line);
            }
            Err(format!("a replica ended: {said}"))
        };
        let late = |_| "a replica did not start in time".to_owned();
        let address = tokio::time::timeout(START, listening).await.map_err(late)??;
        // Nobody reads what it says later, and its pipe stays open.
        tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        Ok(Replica { process, address })
    }

    /// A node of a list, in this process.
    async fn join(&self, name: &str, nodes: &NodeList) -> Result<(HttpListener, Cluster), String> {
        let name: NodeName = name.parse().map_err(|error| format!("{name}: {error}"))?;
        let cluster = Cluster::connect(nodes.clone().into(), Some(name.clone()), Secret::of_loopback()).await;
        let cluster = cluster.map_err(|error| error.to_string())?;
        let server = self.http.server().session_router(cluster.router());
        let listener = server.bind("127.0.0.1:0").await.map_err(|error| error.to_string())?;
        let url = listener.endpoint().0;
        nodes.set(name, url.parse().map_err(|error| format!("{url}: {error}"))?);
        cluster.join(&url).await.map_err(|error| error.to_string())?;
        Ok((listener, cluster))
    }
}

fn client(balancer: &Balancer) -> Result<HttpClient, String> {
    HttpClient::new(&format!("http://{}/", balancer.address())).map_err(|error| error.to_string())
}

fn address_of(url: &str) -> Result<SocketAddr, String> {
    let address = url.trim_start_matches("http://").split('/').next().unwrap_or_default();
    address.parse().map_err(|error| format!("{url}: {error}"))
}

/// A replica that runs. It is killed when this value is dropped.
struct Replica {
    process: Child,
    address: SocketAddr,
}

/// The list of the replicas, in a file that is deleted on drop.
struct ListFile(PathBuf);

impl ListFile {
    fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let name = format!("rescind-nodes-{}-{}", id(), NEXT.fetch_add(1, Ordering::Relaxed));
        Self(std::env::temp_dir().join(name))
    }

    fn write<'a>(&self, nodes: impl Iterator<Item = (&'a str, SocketAddr)>) -> Result<(), String> {
        let lines: Vec<String> = nodes.map(|(name, address)| format!("{name}=http://{address}/\n")).collect();
        // Renamed, so that no replica reads a part of it.
        let part = self.0.with_extension("part");
        std::fs::write(&part, lines.concat())
            .and_then(|()| std::fs::rename(&part, &self.0))
            .map_err(|error| format!("the list of the replicas could not be written: {error}"))
    }
}

impl Drop for ListFile {
    fn drop(&mut self) {
        drop(std::fs::remove_file(&self.0));
    }
}

/// Accepts from any of these listeners.
struct AnyOf {
    listeners: Vec<(HttpListener, Cluster)>,
    _balancer: Balancer,
}

impl Listener for AnyOf {
    fn poll_accept(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Link, TransportError>>> {
        for (listener, _) in &mut self.listeners {
            if let Poll::Ready(accepted) = Pin::new(listener).poll_accept(cx) {
                return Poll::Ready(accepted);
            }
        }
        Poll::Pending
    }

    fn endpoint(&self) -> Endpoint {
        Endpoint("three replicas".to_owned())
    }
}
