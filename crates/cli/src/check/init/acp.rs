//! What an ACP agent offers: sessions and prompts.

use serde_json::{Value, json};

use super::draft::{Draft, Request, Use};
use super::mcp::witness;
use super::{Talk, says};

pub(super) async fn write(draft: &mut Draft, talk: &mut Talk, opening: &Value) -> Result<(), String> {
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
        draft.note(&format!("The agent may need a login first. Its ways to log in: {}", methods(opening)));
        draft.note("Log in by hand, or add the step `authenticate` below. Then remove the `#` before the lines that are left out.");
    }

    let (method, params) = talk.opening();
    draft.blank();
    draft.note("The opening. The id of the session is used below.");
    let step = super::toml_text::inline;
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

fn methods(opening: &Value) -> String {
    let methods = opening.pointer("/result/authMethods").and_then(Value::as_array);
    let ids: Vec<&str> =
        methods.into_iter().flatten().filter_map(|method| method.get("id").and_then(Value::as_str)).collect();
    if ids.is_empty() { "none are declared".to_owned() } else { ids.join(", ") }
}
