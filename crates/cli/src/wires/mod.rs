//! The wires of the matrix: for each scenario a subject of its own, over the wire the column names.

mod loopback;

use std::path::PathBuf;
use std::process::id;
use std::sync::atomic::{AtomicU64, Ordering};

use rescind::stdio::{ChildHandle, Command};
use rescind::{BoxFuture, ByteStream, Framing, Link, Transport, memory_pair};
use rescind_testkit::fixture::Fixture;
use rescind_testkit::runner::{CallingSubject, Connect, LinkSubject, PeerCaller, Played, Settings, play};
use rescind_testkit::{Cell, Part, Scenario};
use tokio::net::TcpListener;

use self::loopback::Loopback;
pub(crate) use self::loopback::half_closes;
use crate::Failure;

/// Plays a scenario on a wire.
///
/// # Errors
/// The wire itself could not be set up on this machine.
pub(crate) async fn play_on(wire: &str, scenario: &Scenario, settings: &Settings) -> Result<Cell, Failure> {
    let played = match (wire, scenario.vector.role) {
        ("memory", Part::Serve) => {
            let mut subject = in_memory(fixture(scenario)?);
            play(scenario, &mut subject, settings).await
        }
        ("memory", Part::Call) => {
            let (near, far) = memory_pair();
            play_calling(scenario, near, far, settings).await?
        }
        ("stdio", Part::Serve) => {
            let mut fixture = ChildFixture::new(scenario)?;
            let mut subject = fixture.subject()?;
            let played = play(scenario, &mut subject, settings).await;
            drop(subject);
            fixture.end().await;
            played
        }
        ("stdio", Part::Call) => {
            let (near, far) = relayed_pair(framing_of(scenario)?).await?;
            play_calling(scenario, near, far, settings).await?
        }
        (wire, Part::Serve) => Loopback::new(wire, scenario).await?.serve(scenario, settings).await?,
        (wire, Part::Call) => {
            let (near, far) = Loopback::new(wire, scenario).await?.pair().await?;
            play(scenario, &mut calling(scenario, near, far)?, settings).await
        }
    };
    Ok(Cell::new(scenario, wire, played))
}

/// The fixture in this process, set up as the scenario wants it.
fn fixture(scenario: &Scenario) -> Result<Fixture, Failure> {
    let fixture = Fixture::new(scenario.dialect, scenario.vector.options.clone());
    Ok(fixture.ok_or("there is no such dialect")?)
}

/// The fixture behind the in-memory wire.
fn in_memory(fixture: Fixture) -> LinkSubject {
    let connect = move || -> BoxFuture<'static, Result<Link, String>> {
        let fixture = fixture.clone();
        Box::pin(async move {
            let (ours, theirs) = memory_pair();
            fixture.serve(theirs).map(|_peer| ours).map_err(|error| error.to_string())
        })
    };
    LinkSubject::new(Box::new(connect)).with_many_lines().with_half_close().with_options()
}

/// Our own `Peer` on the near end of a wire; the scenario plays the far end.
async fn play_calling(
    scenario: &Scenario,
    near: Link,
    far: Link,
    settings: &Settings,
) -> Result<Played, Failure> {
    let fixture = fixture(scenario)?;
    let caller = PeerCaller::open(fixture.clone(), near).map_err(|error| error.to_string())?;
    let mut subject = CallingSubject::new(LinkSubject::new(only(far)).with_half_close(), caller);
    let mut played = play(scenario, &mut subject, settings).await;
    played.outcomes.handled(fixture.handled());
    Ok(played)
}

/// Opens to this link, once.
fn only(link: Link) -> Connect {
    let mut link = Some(link);
    Box::new(move || {
        let link = link.take().ok_or_else(|| "this wire has one connection".to_owned());
        Box::pin(async move { link })
    })
}

/// The fixture as a process of its own, behind its stdin and stdout.
struct ChildFixture {
    dialect: &'static str,
    framing: Framing,
    options: Option<OptionsFile>,
    child: Option<ChildHandle>,
}

impl ChildFixture {
    fn new(scenario: &Scenario) -> Result<Self, Failure> {
        let options =
            if scenario.vector.options.is_default() { None } else { Some(OptionsFile::write(scenario)?) };
        Ok(Self { dialect: scenario.dialect, framing: framing_of(scenario)?, options, child: None })
    }

    fn subject(&mut self) -> Result<LinkSubject, Failure> {
        let mut command = this_program()?
            .args(["fixture", "--dialect", self.dialect, "--listen", "stdio"])
            .framing(self.framing);
        if let Some(options) = &self.options {
            command = command.arg("--options").arg(&options.0);
        }
        let (link, child) = command.start().map_err(|error| error.to_string())?;
        let for_epitaph = child.clone();
        self.child = Some(child);
        let epitaph = move || {
            let status = for_epitaph.exit_status()?;
            (!status.success()).then(|| format!("{status}; stderr: {}", for_epitaph.stderr_tail()))
        };
        Ok(LinkSubject::new(only(link)).with_half_close().with_options().with_epitaph(epitaph))
    }

    async fn end(self) {
        if let Some(child) = self.child {
            let _status = child.wait().await;
        }
    }
}

/// Our own `Peer` on the stdio of a real process, whose other side comes back to us.
async fn relayed_pair(framing: Framing) -> Result<(Link, Link), String> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.map_err(|error| error.to_string())?;
    let address = listener.local_addr().map_err(|error| error.to_string())?;
    let command = this_program()?.arg("relay").arg(address.to_string()).framing(framing);
    let (ours, _child) = command.start().map_err(|error| error.to_string())?;
    let (stream, _) = listener.accept().await.map_err(|error| error.to_string())?;
    stream.set_nodelay(true).map_err(|error| error.to_string())?;
    let (from, to) = stream.into_split();
    let far = ByteStream::new(from, to, framing);
    let far = Box::new(far).open().await.map_err(|error| error.to_string())?;
    Ok((ours, far))
}

fn this_program() -> Result<Command, String> {
    let program =
        std::env::current_exe().map_err(|error| format!("this program does not know its file: {error}"))?;
    Ok(Command::new(program))
}

fn framing_of(scenario: &Scenario) -> Result<Framing, Failure> {
    let dialect = rescind::dialect::Dialect::by_name(scenario.dialect).ok_or("there is no such dialect")?;
    Ok(dialect.rules().framing)
}

/// The options of a vector as a file, gone when this is.
struct OptionsFile(PathBuf);

impl OptionsFile {
    fn write(scenario: &Scenario) -> Result<Self, Failure> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let name = format!("rescind-options-{}-{}.json", id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        let text = serde_json::to_string(&scenario.vector.options).map_err(|error| error.to_string())?;
        std::fs::write(&path, text)
            .map_err(|error| format!("the options could not be written to {}: {error}", path.display()))?;
        Ok(Self(path))
    }
}

impl Drop for OptionsFile {
    fn drop(&mut self) {
        drop(std::fs::remove_file(&self.0));
    }
}
