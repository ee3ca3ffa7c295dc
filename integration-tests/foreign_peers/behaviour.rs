//! Shows with the driver of this folder, without `rescind check`, that right peers are right and wrong ones wrong.

use libtest_mimic::{Failed, Trial};
use serde_json::json;

use crate::questions::QUESTIONS;
use crate::session::Session;
use crate::table::{RIGHT, RightRow, Row, WRONG};

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for row in &RIGHT {
        for dialect in row.dialects {
            let name = format!("driver::right::{dialect}{}", row.flags.concat());
            trials.push(Trial::test(name, move || is_right(row, dialect)));
        }
    }
    for row in &WRONG {
        for dialect in row.dialects {
            let name = format!("driver::wrong::{dialect}--{}{}", row.fault, row.with.concat());
            trials.push(Trial::test(name, move || is_wrong(row, dialect)));
        }
    }
    for (dialect, opening) in [("mcp", mcp_opens as fn() -> _), ("lsp", lsp_opens), ("acp", acp_opens)] {
        trials.push(Trial::test(format!("driver::opening::{dialect}"), opening));
    }
    trials
}

fn is_right(row: &RightRow, dialect: &'static str) -> Result<(), Failed> {
    let asked = QUESTIONS.iter().filter(|(name, _)| !row.but.contains(name));
    let failures = asked.filter_map(|(name, ask)| {
        let mut session = Session::open(dialect, row.flags);
        ask(&mut session).err().map(|why| format!("{name}: {why}"))
    });
    let failures = failures.collect::<Vec<_>>();
    if failures.is_empty() { Ok(()) } else { Err(failures.join("\n").into()) }
}

fn is_wrong(row: &Row, dialect: &'static str) -> Result<(), Failed> {
    let flag = format!("--{}", row.fault);
    let (_, ask) = QUESTIONS.iter().find(|(name, _)| *name == row.question).ok_or("no such question")?;
    let flags = [&[flag.as_str()], row.with].concat();
    // Where answers cannot be read, no session is opened.
    let open = if row.question == "form" { Session::start } else { Session::open };
    let mut session = open(dialect, &flags);
    match ask(&mut session) {
        Ok(()) => Err(format!("{} is not wrong in `{}`", row.fault, row.question).into()),
        Err(_) => Ok(()),
    }
}

/// The code of the error with which a request is refused.
fn refused(session: &mut Session, method: &str, params: &serde_json::Value) -> Result<Option<i64>, Failed> {
    let id = session.request(method, params);
    let answer = session.answer(&id)?;
    Ok(answer.pointer("/error/code").and_then(serde_json::Value::as_i64))
}

fn must_be<T: PartialEq + std::fmt::Debug>(is: &T, owed: &T) -> Result<(), Failed> {
    if is == owed { Ok(()) } else { Err(format!("{is:?} instead of {owed:?}").into()) }
}

fn mcp_opens() -> Result<(), Failed> {
    let mut session = Session::start("mcp", &[]);
    must_be(&refused(&mut session, "ping", &json!({}))?, &None)?;
    must_be(&refused(&mut session, "tools/list", &json!({}))?, &Some(-32600))?;
    let id = session.request("initialize", &json!({"protocolVersion": "1999-01-01", "capabilities": {}}));
    must_be(&session.answer(&id)?["result"]["protocolVersion"], &json!("2025-11-25"))?;
    must_be(&refused(&mut session, "tools/call", &json!({"name": "no-such-tool"}))?, &Some(-32602))?;
    must_be(&session.client.end(), &Some(0))
}

fn lsp_opens() -> Result<(), Failed> {
    let mut session = Session::start("lsp", &[]);
    must_be(&refused(&mut session, "textDocument/hover", &json!({}))?, &Some(-32002))?;
    must_be(&refused(&mut session, "initialize", &json!({}))?, &None)?;
    must_be(&refused(&mut session, "initialize", &json!({}))?, &Some(-32600))?;
    must_be(&refused(&mut session, "textDocument/hover", &json!({}))?, &Some(-32602))?;
    must_be(&refused(&mut session, "shutdown", &json!(null))?, &None)?;
    must_be(&refused(&mut session, "textDocument/hover", &json!({}))?, &Some(-32600))?;
    session.notify("exit", &json!(null));
    must_be(&session.client.end(), &Some(0))?;
    let mut session = Session::start("lsp", &[]);
    session.notify("exit", &json!(null));
    must_be(&session.client.end(), &Some(1))
}

fn acp_opens() -> Result<(), Failed> {
    let mut session = Session::start("acp", &["--needs-setup"]);
    let new = json!({"cwd": "/", "mcpServers": []});
    must_be(&refused(&mut session, "session/new", &new)?, &Some(-32600))?;
    must_be(&refused(&mut session, "initialize", &json!({"protocolVersion": 1}))?, &None)?;
    must_be(&refused(&mut session, "session/new", &new)?, &Some(-32000))?;
    must_be(&refused(&mut session, "authenticate", &json!({"methodId": "token"}))?, &None)?;
    must_be(
        &refused(&mut session, "session/new", &json!({"cwd": "here", "mcpServers": []}))?,
        &Some(-32602),
    )?;
    must_be(&refused(&mut session, "session/new", &new)?, &None)?;
    must_be(&refused(&mut session, "session/prompt", &json!({"sessionId": "session-9"}))?, &Some(-32602))?;
    let slow = session.slow(1);
    session.works(&slow)?;
    session.notify("session/cancel", &json!({"sessionId": "session-1"}));
    must_be(&session.answer(&slow.id)?["result"], &json!({"stopReason": "cancelled"}))?;
    must_be(&session.client.end(), &Some(0))
}
