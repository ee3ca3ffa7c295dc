//! The states of `disconnect.rs` with a child process as the agent: it is killed, or its client disconnects. The
//! caller's outcome is the same as on every other wire. The observations of a killed process's handlers are not
//! known.

use std::process::ExitCode;

use libtest_mimic::Trial;
use rescind::Call;
use rescind::dialect::Role;
use rescind::stdio::{ChildHandle, Command, this_process};
use rescind::transport::Transport as _;
use serde_json::{Value, json};

use crate::agent::{End, Seen, ended, limits};
use crate::disconnect::{MUCH, STATES, State, is_answered_or_lost};
use crate::{in_time, trial, until};

/// This program is the agent if the environment has this variable. Its value is the state to reach.
pub(crate) const AGENT: &str = "RESCIND_FAULT_AGENT";

/// The child serves its own stdin and stdout.
pub(crate) fn serve(state: &str) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let limits = STATES
            .into_iter()
            .find(|(_, name)| *name == state)
            .map_or_else(limits, |(state, _)| state.limits());
        let link = Box::new(this_process()).open().await.unwrap();
        let end = End::attach(link, Role::Server, limits, Seen::new());
        let _ = end.peer.closed().await;
    });
    runtime.shutdown_background();
    ExitCode::SUCCESS
}

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for (state, name) in STATES {
        for killed in [true, false] {
            let leaver = if killed { "server" } else { "client" };
            let name = format!("disconnect::{name}_asked_by_client_lost_by_{leaver}::stdio");
            trials.push(trial(name, move || lost(state, killed)));
        }
    }
    let name = "disconnect::running_asked_by_server_lost_by_server::stdio".to_owned();
    trials.push(trial(name, a_child_that_asks));
    trials
}

async fn start(state: State) -> (End, ChildHandle) {
    let name = STATES.into_iter().find(|(known, _)| *known == state).map_or("", |(_, name)| name);
    let program = std::env::current_exe().unwrap();
    let (link, child) = Command::new(program).env(AGENT, name).start().unwrap();
    let client = End::attach(link, Role::Client, limits(), Seen::new());
    client.shake_hands().await;
    (client, child)
}

fn kill(child: &ChildHandle) {
    let pid = i32::try_from(child.pid()).ok().and_then(rustix::process::Pid::from_raw).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
}

/// Waits until a handler of the child has recorded this.
async fn saw(client: &End, line: &str) {
    in_time(line, async {
        while !client
            .peer
            .call::<_, Vec<String>>("seen", &json!({}))
            .await
            .unwrap()
            .iter()
            .any(|it| it == line)
        {}
    })
    .await;
}

async fn began(client: &End, method: &str) -> Vec<Call<Value>> {
    let calls = vec![client.call(method, 1)];
    saw(client, &format!("{method} 1 began")).await;
    calls
}

async fn reach(state: State, client: &End) -> Vec<Call<Value>> {
    match state {
        State::Staged => {
            client.valve.stop_writing();
            vec![client.call("wait", 1)]
        }
        State::Queued => {
            let calls = vec![client.call("wait", 1), client.call("wait", 2)];
            until("both are written", || client.peer.queue_stats().outbox_frames == 0).await;
            calls
        }
        State::Running => began(client, "wait").await,
        State::Deaf => began(client, "deaf").await,
        State::CancelStaged => {
            let calls = began(client, "wait").await;
            client.valve.stop_writing();
            calls[0].canceller().cancel("too late");
            calls
        }
        State::InGrace => {
            let calls = began(client, "clean").await;
            calls[0].canceller().cancel("stop");
            saw(client, "clean 1 signalled: peer").await;
            calls
        }
        State::Draining => {
            let calls = began(client, "block").await;
            calls[0].canceller().cancel("stop");
            calls
        }
        State::Shielded => {
            let calls = began(client, "shield").await;
            saw(client, "shield 1 shielded").await;
            calls
        }
        State::AnswerStaged => {
            let waiting = client.call("wait", 1);
            saw(client, "wait 1 began").await;
            drop(waiting);
            client.valve.stop_reading();
            let much = json!({"n": 1, "bytes": 2 << 20});
            let calls: Vec<_> =
                (0..MUCH).map(|_| client.peer.call::<_, Value>("much", &much).start().unwrap()).collect();
            until("all are written", || client.peer.queue_stats().outbox_frames == 0).await;
            calls
        }
    }
}

async fn lost(state: State, killed: bool) {
    let (client, child) = start(state).await;
    let mut calls = in_time("the state", reach(state, &client)).await;
    let mut callers = Vec::new();
    if state == State::Draining {
        // An outcome that was confirmed before the loss is kept.
        callers.push(ended(calls.remove(0)).await);
    }
    if killed {
        kill(&child);
    } else {
        client.valve.cut();
    }
    client.valve.read_again();
    for call in calls {
        callers.push(ended(call).await);
    }
    let status = in_time("L3: the child is reaped", child.wait()).await;
    assert!(!killed || !status.success(), "{status}");
    let why = in_time("L3: the end", client.peer.closed()).await.unwrap_err();
    assert!(!why.to_string().is_empty());
    client.is_clean("who asked").await;
    if state == State::AnswerStaged {
        is_answered_or_lost(&callers, !killed, 0);
    } else {
        assert_eq!(callers, state.expected().callers, "I15: what the callers saw");
    }
}

/// A child's requests to this side are cancelled when it dies.
async fn a_child_that_asks() {
    let (client, child) = start(State::Running).await;
    let call = client.call("ask", 1);
    client.seen.until("wait 1 began").await;
    kill(&child);
    assert_eq!(ended(call).await, "disconnected, may have run");
    let _ = in_time("L3: the end", client.peer.closed()).await;
    client.is_clean("the client").await;
    assert_eq!(client.seen.lines(), ["wait 1 began", "wait 1 signalled: disconnected", "wait 1 gone"]);
    in_time("L3: the child is reaped", child.wait()).await;
}
