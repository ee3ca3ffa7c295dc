//! `rescind check --init`: starts or reaches a peer, asks what it offers, measures requests that only read, and writes a
//! profile for it.

mod draft;
mod lsp;
mod mcp;
mod measure;

use std::path::PathBuf;
use std::time::Duration;

use rescind_testkit::Profile;
use rescind_testkit::dialects::Offers;
use serde_json::{Value, json};

use self::draft::{Draft, Request, Use, arguments, inline, may_be_slow, sounds_slow, witness};
use super::source::{Foreign, Source};
use super::talk::Talk;
use crate::args::Check;
use crate::{Failure, output};

/// Writes the profile to stdout.
///
/// # Errors
/// One sentence, if the peer cannot be asked.
pub(super) async fn run(args: &Check, peer: Foreign, patience: Duration) -> Result<(), Failure> {
    let name = name_of(&peer.program());
    let mut source = Source::new(peer, Profile::new(&name), PathBuf::from("."), patience);
    let text = ask(args, &mut source, &name).await.map_err(|why| source.failure(&why))?;
    // Before anybody relies on it.
    Profile::from_toml(&text)
        .map_err(|error| format!("the profile of this peer could not be written: {error}"))?;
    output::result(&text)
}

async fn ask(args: &Check, source: &mut Source, name: &str) -> Result<String, String> {
    let (talk, opening) = Talk::open(source, args.dialect).await?;
    let mut draft = Draft::new(name);
    let patience = Duration::from_millis(args.step_timeout) * 2;
    let talk = match args.dialect.offers {
        Offers::Tools => mcp::write(&mut draft, talk, source, args.dialect, &opening, patience).await?,
        Offers::Documents => {
            lsp::write(&mut draft, talk, source, args.dialect, &opening, args.document.as_deref(), patience)
                .await?
        }
        Offers::Capabilities => {
            write_abp(&mut draft, &opening);
            Some(talk)
        }
        Offers::Prompts => {
            let mut talk = talk;
            write_acp(&mut draft, &mut talk, &opening).await?;
            Some(talk)
        }
    };
    if let Some(talk) = talk {
        talk.leave().await;
    }
    Ok(draft.text())
}

/// The name of a program, without its folders.
fn name_of(program: &str) -> String {
    program.rsplit(['/', '\\']).find(|part| !part.is_empty()).unwrap_or("peer").to_owned()
}

/// The name that a peer gives itself.
fn says(opening: &Value, places: &[&str]) -> Option<String> {
    places.iter().find_map(|place| opening.pointer(place)).and_then(Value::as_str).map(str::to_owned)
}

/// What an ACP agent offers: sessions and prompts.
async fn write_acp(draft: &mut Draft, talk: &mut Talk, opening: &Value) -> Result<(), String> {
    if let Some(name) = says(opening, &["/result/agentInfo/name", "/result/info/name"]) {
        draft.note(&format!("The agent says that it is {name}."));
    }
    let folder = if cfg!(windows) { "C:\\" } else { "/" };
    let new_session = json!({ "cwd": folder, "mcpServers": [] });
    let answer = talk.request("session/new", new_session.clone()).await?;
    let session = talk.result(&answer).and_then(|result| result.get("sessionId").cloned());
    let used = if session.is_some() { Use::Active } else { Use::Suggested };
    if session.is_none() {
        draft.note(&format!("`session/new` was refused: {answer}"));
        draft.note(&format!(
            "The agent may need a login first. Its ways to log in: {}",
            login_methods(opening)
        ));
        draft.note("Log in by hand, or add the step `authenticate` below. Then remove the `#` before the lines that are left out.");
    }

    let (method, params) = talk.opening();
    draft.blank();
    draft.note("The opening. The id of the session is used below.");
    let step = inline;
    let login = "# { method = \"authenticate\", params = { methodId = \"ID\" } },".to_owned();
    let mut steps = vec!["[handshake]".to_owned(), "steps = [".to_owned()];
    steps.push(format!("{{ method = \"{method}\", params = {} }},", step(&params)));
    if session.is_none() {
        steps.push(login);
    }
    steps.push(format!(
        "{{ method = \"session/new\", params = {}, bind = {{ session = \"result.sessionId\" }} }},",
        step(&new_session)
    ));
    steps.push("]".to_owned());
    draft.lines(&steps, used);

    draft.blank();
    draft.note("Runs long. The agent's model is asked about a hundred times, and cancelled each time: use a cheap one or a fake one.");
    draft.note(
        "An agent that has another way to be slow, such as a tool or a command, is told so by the text.",
    );
    let text = "Count slowly from 1 to 1000, each number in words on a line of its own.";
    let prompt = json!({ "sessionId": "${session}", "prompt": [{ "type": "text", "text": text }] });
    let mut slow = Request::new("session/prompt", prompt);
    slow.cancelled = Some(json!([{ "result": {"stopReason": "cancelled"} }, { "code": -32_800 }]));
    draft.request("slow", &slow, used);

    draft.blank();
    draft.note("Answered at once, at any time, also while a prompt runs.");
    draft.request("quick", &Request::new("session/new", new_session), used);

    draft.blank();
    draft.note("What the agent asks of its client can be answered: the results by method. Other requests get \"method not found\".");
    draft.lines(
        &[
            "[session]".to_owned(),
            "replies = { \"session/request_permission\" = { outcome = { outcome = \"cancelled\" } } }"
                .to_owned(),
        ],
        Use::Active,
    );
    draft.blank();
    witness(draft);
    Ok(())
}

fn login_methods(opening: &Value) -> String {
    let methods = opening.pointer("/result/authMethods").and_then(Value::as_array);
    let ids: Vec<&str> =
        methods.into_iter().flatten().filter_map(|method| method.get("id").and_then(Value::as_str)).collect();
    if ids.is_empty() { "none are declared".to_owned() } else { ids.join(", ") }
}

/// What an ABP application offers: its capabilities.
fn write_abp(draft: &mut Draft, opening: &Value) {
    if let Some(name) = says(opening, &["/payload/app/name"]) {
        draft.note(&format!("The application says that it is {name}."));
    }
    let capabilities = opening.pointer("/payload/capabilities").and_then(Value::as_array);
    let all: Vec<Request> = capabilities.into_iter().flatten().filter_map(request_for).collect();
    let sure = all.iter().find(|request| sounds_slow(&request.method));
    let maybe = all.iter().find(|request| may_be_slow(&request.method));
    let unknown = Request::new("CAPABILITY", json!({}));
    draft.blank();
    draft.note("Runs long: seconds, and at least 20 times as long as the quick one.");
    match (sure, maybe.or(all.first())) {
        (Some(request), _) => draft.request("slow", request, Use::Active),
        (None, Some(request)) => draft.request("slow", request, Use::Suggested),
        (None, None) => draft.request("slow", &unknown, Use::Suggested),
    }
    draft.blank();
    draft.note(
        "Answered at once, at any time, also while the slow request runs. If this one is, remove the `#`:",
    );
    let quick = all.iter().find(|request| !may_be_slow(&request.method)).unwrap_or(&unknown);
    draft.request("quick", quick, Use::Suggested);
    draft.blank();
    witness(draft);
}

fn request_for(capability: &Value) -> Option<Request> {
    let name = capability.get("name").and_then(Value::as_str)?;
    let params = capability.get("inputSchema").or_else(|| capability.get("params")).unwrap_or(&Value::Null);
    Some(Request::new(name, arguments(params)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_profile_has_the_name_of_the_program() {
        assert_eq!(name_of("/usr/bin/pyright"), "pyright");
        assert_eq!(name_of(r"C:\tools\server.exe"), "server.exe");
        assert_eq!(name_of("ws://localhost:80/"), "localhost:80");
        assert_eq!(name_of(""), "peer");
    }
}
