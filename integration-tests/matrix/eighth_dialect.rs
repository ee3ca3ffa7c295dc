//! A dialect that is not built in, played where the built-in ones are: the bare machine, the fixture and a `Peer` on each
//! wire of the matrix, and `rescind check`'s library. It is known only here: its rules as a `Dialect`, and the rest as one
//! `DialectFacts`.
//!
//! Its scenarios are ACP's with its own words. This program is also the process of the wires that need one.

use std::collections::BTreeMap;
use std::error::Error;
use std::io::Write as _;
use std::net::{Shutdown, TcpStream};
use std::process::ExitCode;
use std::sync::LazyLock;
use std::{env, io, thread};

use libtest_mimic::{Failed, Trial};
use rescind::dialect::{
    ACP, CancelName, CancelledError, CancelledReply, DecidedBy, Dialect, EarlyCancel, JsonRpc, LostStream,
};
use rescind::transport::{Link, Transport as _};
use rescind::{ErrorCode, Framing, memory_pair};
use rescind_check::{CheckSettings, PeerSource, Started, check_with};
use rescind_testkit::dialects::{self, DialectFacts, HttpBinding, Opening};
use rescind_testkit::fixture::Fixture;
use rescind_testkit::runner::{LinkSubject, Verdict};
use rescind_testkit::wire_format::WireFormat;
use rescind_testkit::wires::{Program, WIRES, not_asked};
use rescind_testkit::{
    Answer, BareMachine, Demand, HandshakeMode, Options, Profile, Scenario, Step, scenarios_of,
};
use serde_json::{Value, json};

#[expect(dead_code, reason = "the matrix is a program of its own")]
#[path = "cells.rs"]
mod cells;

// ---- the dialect: its rules

const OPENING: &str = "house/hello";
const STOP: CancelName = CancelName { method: "house/stop", key: "request" };
/// ACP's cancel, which it replaces.
const OF_ACP: CancelName = CancelName { method: "$/cancel_request", key: "requestId" };

static HOUSE: LazyLock<Dialect> = LazyLock::new(|| {
    let mut codec = JsonRpc::new(STOP);
    codec.also_accepted = &[CancelName { method: "$/cancelRequest", key: "id" }];
    let cancelled =
        CancelledError { code: ErrorCode::REQUEST_CANCELLED, message: "Request cancelled", says_why: false };
    Dialect::builder("house")
        .json_rpc(codec)
        .handshake(OPENING)
        .decided(DecidedBy::Handler)
        .peer_cancelled(CancelledReply::Error(cancelled))
        .local_cancelled(cancelled)
        .called_off(ACP.rules().called_off)
        .reserved_prefix("$/")
        .early(EarlyCancel::WhereUnordered)
        .lost_stream(LostStream::Detach)
        .subprotocols(&["house"])
        .framing(Framing::ContentLength)
        .build()
});

// ---- the dialect: what else is known of it

static FACTS: LazyLock<DialectFacts> = LazyLock::new(|| DialectFacts {
    dialect: &HOUSE,
    opening: Some(Opening {
        params: |client| json!({ "guest": client }),
        result: |server| json!({ "host": server }),
        fixture_result: |server, _| json!({ "host": server }),
        opened: Some("house/seated"),
    }),
    discovery: None,
    ping: Some("house/knock"),
    bindings: &[HttpBinding::Streamable],
    document: "HOUSE 1.0",
    statements: &[STATEMENTS],
    client_check: None,
    ..dialects::ACP
});

const STATEMENTS: &str = "must\tcancels_running\t{document}: a request that is stopped ends.\n\
                          must\tturn_cancelled\t{document}: a turn that is stopped says so.";

// ---- its scenarios

static SCENARIOS: LazyLock<Vec<Scenario>> = LazyLock::new(|| {
    scenarios_of(ACP.name()).filter(|scenario| !is_about_acp_alone(scenario)).map(in_the_house).collect()
});

/// Whether it is about the opening or the other spelling of ACP.
fn is_about_acp_alone(scenario: &Scenario) -> bool {
    matches!(scenario.vector.handshake, HandshakeMode::Steps(_))
}

fn in_the_house(scenario: &Scenario) -> Scenario {
    let mut vector = scenario.vector.clone();
    for step in &mut vector.steps {
        step.each_frame(&mut |frame| say_it_as_here(frame));
        if let Step::Call(call) = step {
            call.method = call.method.replace("initialize", OPENING);
        }
    }
    Scenario::new(&FACTS, vector)
}

fn say_it_as_here(frame: &mut Value) {
    if let Value::Array(members) = frame {
        members.iter_mut().for_each(say_it_as_here);
    }
    let Some(members) = frame.as_object_mut() else { return };
    match members.get("method").and_then(Value::as_str) {
        Some("initialize") => members["method"] = json!(OPENING),
        Some(method) if method == OF_ACP.method => {
            members["method"] = json!(STOP.method);
            let params = members.get_mut("params").and_then(Value::as_object_mut);
            for params in params.into_iter().filter(|params| params.contains_key(OF_ACP.key)) {
                let id = params.remove(OF_ACP.key).unwrap_or_default();
                params.insert(STOP.key.to_owned(), id);
            }
        }
        _ => {}
    }
    members.values_mut().for_each(say_it_as_here);
}

// ---- the tests

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let words: Vec<String> = env::args().collect();
    match words.get(1).map(String::as_str) {
        Some("fixture") => return serve(&words).map(|()| ExitCode::SUCCESS),
        Some("relay") => return relay(&words).map(|()| ExitCode::SUCCESS),
        _ => {}
    }
    let mut trials = vec![
        Trial::test("house::the_bare_machine_holds_each_scenario", bare_machine),
        Trial::test("house::each_wire_that_carries_it_plays_most_scenarios", wires),
        Trial::test("house::a_check_cites_its_document_and_finds_no_fault", check),
    ];
    // Three replicas are processes of the command line, which does not know it.
    let (cells, _) = cells::trials(&SCENARIOS, Program::this()?, |wire, _| !wire.ends_with("@3"))?;
    trials.extend(cells);
    Ok(libtest_mimic::run(&cells::arguments(), trials).exit_code())
}

fn bare_machine() -> Result<(), Failed> {
    for scenario in SCENARIOS.iter() {
        let played = BareMachine::play(&HOUSE, scenario);
        match played.verdict {
            Verdict::Held | Verdict::NotAsked { .. } => {}
            verdict => return Err(format!("{}: {verdict:?}", scenario.vector.name).into()),
        }
    }
    Ok(())
}

/// It is carried as a dialect of JSON-RPC with sessions.
fn wires() -> Result<(), Failed> {
    let mut played = BTreeMap::new();
    for wire in WIRES {
        for scenario in SCENARIOS.iter() {
            *played.entry(wire).or_insert(0) += usize::from(not_asked(wire, scenario)?.is_none());
        }
    }
    for wire in [
        "http-stateless",
        "http-acp",
        "http-legacy-sse",
        "bridge:http-acp>stdio",
        "http-stateless@3",
        "http-acp@3",
    ] {
        assert_eq!(played.remove(wire), Some(0), "{wire}");
    }
    assert_eq!(played.len(), 10, "{played:?}");
    assert!(played.values().all(|count| *count > 50), "{played:?}");
    Ok(())
}

/// The fixture in memory, as a peer that is checked.
struct InMemory(Fixture);

impl PeerSource for InMemory {
    fn start(&mut self) -> Started {
        let fixture = self.0.clone();
        let subject = LinkSubject::new(Box::new(move || {
            let (ours, theirs): (Link, Link) = memory_pair();
            let served = fixture.serve(theirs).map(|_peer| ours).map_err(|error| error.to_string());
            Box::pin(async move { served })
        }));
        Started { subject: subject.with_many_lines().with_half_close(), profile: Profile::new("house") }
    }

    fn process_group(&self) -> Option<u32> {
        None
    }

    fn wire(&self) -> &'static str {
        "memory"
    }
}

fn check() -> Result<(), Failed> {
    let mut settings = CheckSettings::default();
    settings.recognise_fixture = true;
    let mut source = InMemory(Fixture::of(&FACTS, Options::default()));
    let wire_format = WireFormat { facts: &FACTS };
    let checked = check_with(wire_format, SCENARIOS.iter(), &mut source, &settings, |_| {});
    let report = runtime()?.block_on(checked).map_err(|error| error.to_string())?;
    let broken: Vec<_> = report.cells.iter().filter(|cell| !cell.why.is_empty()).collect();
    assert_eq!((report.summary.broke, report.summary.faults), (0, 0), "{:?}: {broken:?}", report.facts);
    assert!(report.summary.held > 30, "{:?}", report.summary);
    let fact = |name: &str| report.facts.iter().find(|fact| fact.name == name);
    let cancels = fact("cancels_running").ok_or("it was not asked")?;
    assert_eq!((cancels.answer, cancels.demand), (Answer::Yes, Demand::Must));
    assert_eq!(cancels.source, "HOUSE 1.0: a request that is stopped ends.");
    assert!(fact("turn_cancelled").is_some() && fact("reserved_method_refused").is_none());
    Ok(())
}

// ---- the processes of the wires

fn runtime() -> io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()
}

/// `fixture --dialect house --listen stdio [--options FILE.json]`
fn serve(words: &[String]) -> Result<(), Box<dyn Error>> {
    let file = words.iter().skip_while(|word| *word != "--options").nth(1);
    let options = match file {
        Some(file) => serde_json::from_slice(&std::fs::read(file)?)?,
        None => Options::default(),
    };
    let fixture = Fixture::of(&FACTS, options);
    runtime()?.block_on(async {
        let transport = rescind::stdio::this_process().framing(HOUSE.rules().framing);
        let peer = fixture.serve(Box::new(transport).open().await?)?;
        let _ended = peer.closed().await;
        Ok(())
    })
}

/// `relay ADDRESS WORD`
fn relay(words: &[String]) -> Result<(), Box<dyn Error>> {
    let [_, _, address, word] = words else { return Err("relay ADDRESS WORD".into()) };
    let mut stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    stream.write_all(word.as_bytes())?;
    let mut from = stream.try_clone()?;
    thread::spawn(move || {
        copy(&mut io::stdin().lock(), &mut stream)?;
        stream.shutdown(Shutdown::Write)
    });
    Ok(copy(&mut from, &mut io::stdout().lock())?)
}

/// Copies to the end. No byte waits for those behind it.
fn copy(from: &mut impl io::Read, to: &mut impl io::Write) -> io::Result<()> {
    let mut bytes = [0; 8192];
    loop {
        let read = from.read(&mut bytes)?;
        let Some(found) = bytes.get(..read).filter(|found| !found.is_empty()) else { return Ok(()) };
        to.write_all(found)?;
        to.flush()?;
    }
}
