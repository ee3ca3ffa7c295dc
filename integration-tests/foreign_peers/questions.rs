//! What the specifications demand, asked by hand: each question has a session of its own. A right peer answers all of
//! them. A wrong peer fails the one that is named beside its fault.

use libtest_mimic::{Failed, Trial};
use serde_json::{Value, json};

use crate::rows::{RIGHT, RightRow, Row, WRONG};
use crate::session::{STEPS, Session, Slow};

type Asked = Result<(), String>;
/// A name, and who asks.
type Question = (&'static str, fn(&mut Session) -> Asked);

/// A question, by its name in the tables.
const QUESTIONS: [Question; 22] = [
    ("normal", normal),
    ("cancelled", cancelled),
    ("siblings", siblings),
    ("newest", newest),
    ("slots", slots),
    ("late cancel", late_cancel),
    ("unknown cancel", unknown_cancel),
    ("malformed cancel", malformed_cancel),
    ("ids", ids),
    ("id zero", id_zero),
    ("id zero served", id_zero_served),
    ("progress", progress),
    ("unknown method", unknown_method),
    ("unknown notification", unknown_notification),
    ("survival", survival),
    ("output", output),
    ("form", form),
    ("turn", turn),
    ("turn is soon over", turn_is_soon_over),
    ("other turns", other_turns),
    ("next turn", next_turn),
    ("task", task),
];

fn ensure(holds: bool, why: impl FnOnce() -> String) -> Asked {
    if holds { Ok(()) } else { Err(why()) }
}

/// Runs a slow request to its end: what was sent before has had the time to be answered.
fn run_to_the_end(session: &mut Session, line: u64) -> Asked {
    let slow = session.slow(line);
    ends_normally(session, &slow)
}

fn ends_normally(session: &mut Session, slow: &Slow) -> Asked {
    let answer = session.answer(&slow.id)?;
    ensure(answer.get("result").is_some(), || format!("it fails: {answer}"))?;
    let is_cancelled = answer.pointer("/result/stopReason") == Some(&json!("cancelled"));
    ensure(!is_cancelled, || format!("it is cancelled: {answer}"))?;
    let steps = session.steps(slow);
    ensure(steps >= STEPS, || {
        format!("only {steps} of {STEPS} steps were reported: {:?}", session.client.frames)
    })
}

fn is_answered(session: &mut Session) -> Asked {
    let id = session.quick();
    let answer = session.answer(&id)?;
    let refused = answer.pointer("/error/code") == Some(&json!(-32800));
    ensure(!refused, || format!("a quick request is cancelled: {answer}"))
}

fn normal(session: &mut Session) -> Asked {
    is_answered(session)?;
    let slow = session.slow(1);
    ends_normally(session, &slow)?;
    is_answered(session)?;
    let answers = session.answers(&slow.id);
    ensure(answers == 1, || format!("{answers} answers to one request"))
}

/// The right end of a request that was cancelled after it began.
fn ends_as_cancelled(session: &mut Session, slow: &Slow) -> Asked {
    if session.dialect == "mcp" {
        return Ok(());
    }
    let answer = session.answer(&slow.id)?;
    let code = answer.pointer("/error/code") == Some(&json!(-32800));
    let turn = answer.pointer("/result/stopReason") == Some(&json!("cancelled"));
    let part = answer.get("result").and_then(Value::as_array).is_some_and(|it| it.len() < STEPS);
    ensure(code || turn || part, || format!("a cancelled request is answered {answer}"))
}

fn cancelled(session: &mut Session) -> Asked {
    let slow = session.slow(1);
    session.works(&slow)?;
    session.cancel(&slow.id);
    ends_as_cancelled(session, &slow)?;
    run_to_the_end(session, 2)?;
    let steps = session.steps(&slow);
    ensure(steps < STEPS, || format!("it works to its end: {steps} steps"))?;
    let (answers, owed) = (session.answers(&slow.id), usize::from(session.dialect != "mcp"));
    ensure(answers == owed, || format!("{answers} answers to a cancelled request"))
}

fn siblings(session: &mut Session) -> Asked {
    let (ours, other) = (session.slow(1), session.slow(2));
    session.works(&ours)?;
    session.cancel(&ours.id);
    ends_normally(session, &other)?;
    ends_as_cancelled(session, &ours)?;
    let (steps, answers) = (session.steps(&ours), session.answers(&ours.id));
    ensure(steps < STEPS, || "the cancelled one worked to its end".to_owned())?;
    ensure(answers == usize::from(session.dialect != "mcp"), || {
        format!("{answers} answers to the cancelled one")
    })
}

fn slots(session: &mut Session) -> Asked {
    for _ in 0..9 {
        let slow = session.slow(1);
        session.works(&slow)?;
        session.cancel(&slow.id);
    }
    run_to_the_end(session, 2)
}

fn late_cancel(session: &mut Session) -> Asked {
    let quick = session.quick();
    session.answer(&quick)?;
    session.cancel(&quick);
    is_answered(session)?;
    session.cancel(&quick);
    run_to_the_end(session, 1)
}

fn unknown_cancel(session: &mut Session) -> Asked {
    session.cancel(&json!(987_654));
    session.cancel(&json!("no-such-request"));
    is_answered(session)
}

fn malformed_cancel(session: &mut Session) -> Asked {
    let (method, member) = session.cancel_form();
    for params in [json!({}), json!({member: null}), json!({member: {}}), json!([])] {
        session.notify(method, &params);
    }
    session.client.send(&json!({"jsonrpc": "2.0", "method": method}));
    is_answered(session)
}

fn ids(session: &mut Session) -> Asked {
    let slow = session.slow(1);
    session.works(&slow)?;
    session.cancel(&json!(slow.id.to_string()));
    ends_normally(session, &slow)
}

fn id_zero(session: &mut Session) -> Asked {
    session.is_next_zero = true;
    cancelled(session)
}

fn id_zero_served(session: &mut Session) -> Asked {
    session.is_next_zero = true;
    is_answered(session)
}

fn progress(session: &mut Session) -> Asked {
    let slow = session.slow(1);
    session.answer(&slow.id)?;
    let steps = session.steps(&slow);
    is_answered(session)?;
    ensure(session.steps(&slow) == steps, || "progress follows the answer".to_owned())
}

fn unknown_method(session: &mut Session) -> Asked {
    for method in ["no/such/method", "$/noSuchMethod"] {
        let id = session.request(method, &json!({}));
        let answer = session.answer(&id)?;
        let code = answer.pointer("/error/code");
        ensure(code == Some(&json!(-32601)), || format!("{method} is answered {answer}"))?;
    }
    Ok(())
}

fn unknown_notification(session: &mut Session) -> Asked {
    session.notify("no/such/notification", &json!({}));
    session.notify("$/noSuchNotification", &json!({}));
    is_answered(session)?;
    let is_stray = |frame: &&Value| frame.get("method").is_none() && frame.get("id") == Some(&Value::Null);
    let stray = session.client.frames.iter().find(is_stray);
    ensure(stray.is_none(), || format!("a notification is answered {stray:?}"))
}

fn survival(session: &mut Session) -> Asked {
    let slow = session.slow(1);
    session.works(&slow)?;
    session.cancel(&slow.id);
    ends_as_cancelled(session, &slow)?;
    run_to_the_end(session, 2)?;
    is_answered(session)
}

fn output(session: &mut Session) -> Asked {
    run_to_the_end(session, 1)?;
    let noise = &session.client.noise;
    ensure(noise.is_empty(), || format!("stdout has {noise:?}"))
}

/// Of two slow requests the newer one is cancelled.
fn newest(session: &mut Session) -> Asked {
    let (other, ours) = (session.slow(1), session.slow(2));
    session.works(&other)?;
    session.cancel(&ours.id);
    ends_normally(session, &other)?;
    ends_as_cancelled(session, &ours)
}

/// The form of answers, with a result and with an error. The session need not be open.
pub(crate) fn form(session: &mut Session) -> Asked {
    let client = json!({"name": "driver", "version": "1"});
    let opening = match session.dialect {
        "mcp" => json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": client}),
        "lsp" => json!({"processId": null, "rootUri": null, "capabilities": {}}),
        _ => json!({"protocolVersion": 1, "clientCapabilities": {}}),
    };
    let ids = [session.request("initialize", &opening), session.request("no/such/method", &json!({}))];
    for id in ids {
        let answer = session.answer(&id)?;
        ensure(answer["jsonrpc"] == "2.0", || format!("the version is missing: {answer}"))?;
        let error = answer.get("error");
        ensure(error.is_none_or(Value::is_object), || format!("the error is no object: {answer}"))?;
    }
    Ok(())
}

/// Cancels a turn by its session, and returns its answer.
fn cancelled_turn(session: &mut Session, slow: &Slow) -> Result<Value, String> {
    session.works(slow)?;
    session.notify("session/cancel", &json!({"sessionId": "session-1"}));
    session.answer(&slow.id)
}

fn turn(session: &mut Session) -> Asked {
    if session.dialect != "acp" {
        return Ok(());
    }
    let slow = session.slow(1);
    let answer = cancelled_turn(session, &slow)?;
    let is_cancelled = answer.pointer("/result/stopReason") == Some(&json!("cancelled"));
    ensure(is_cancelled, || format!("a cancelled turn ends with {answer}"))
}

fn turn_is_soon_over(session: &mut Session) -> Asked {
    if session.dialect != "acp" {
        return Ok(());
    }
    let slow = session.slow(1);
    cancelled_turn(session, &slow)?;
    let steps = session.steps(&slow);
    ensure(steps < STEPS, || format!("a cancelled turn works to its end: {steps} steps"))
}

fn other_turns(session: &mut Session) -> Asked {
    if session.dialect != "acp" {
        return Ok(());
    }
    let (slow, other) = (session.slow(1), session.slow(2));
    cancelled_turn(session, &slow)?;
    ends_normally(session, &other)
}

fn next_turn(session: &mut Session) -> Asked {
    if session.dialect != "acp" {
        return Ok(());
    }
    let slow = session.slow(1);
    cancelled_turn(session, &slow)?;
    run_to_the_end(session, 1)
}

/// A task outlives its request, and its cancel stops its work for good.
fn task(session: &mut Session) -> Asked {
    let declares = |frame: &Value| frame.pointer("/result/capabilities/tasks").is_some();
    if !session.client.frames.iter().any(declares) {
        return Ok(());
    }
    let unknown = session.request("tasks/get", &json!({"taskId": "no-such-task"}));
    let answer = session.answer(&unknown)?;
    let is_invalid = |answer: &Value| answer.pointer("/error/code") == Some(&json!(-32602));
    ensure(is_invalid(&answer), || format!("an unknown task is answered {answer}"))?;

    let slow = session.slow_task();
    let handle = session.answer(&slow.id)?;
    let named = json!({"taskId": handle.pointer("/result/task/taskId").ok_or("there is no handle")?});
    let asked = |session: &mut Session, method: &str| {
        let id = session.request(method, &named);
        session.answer(&id)
    };
    session.cancel(&slow.id);
    session.works(&slow)?;
    let working = asked(session, "tasks/get")?;
    ensure(working["result"]["status"] == "working", || format!("a task that works is {working}"))?;
    let cancelled = asked(session, "tasks/cancel")?;
    ensure(cancelled["result"]["status"] == "cancelled", || format!("a cancel is answered {cancelled}"))?;
    run_to_the_end(session, 1)?;
    let later = asked(session, "tasks/get")?;
    ensure(later["result"]["status"] == "cancelled", || format!("a cancelled task became {later}"))?;
    let steps = session.steps(&slow);
    ensure(steps < STEPS, || format!("a cancelled task works to its end: {steps} steps"))?;
    let again = asked(session, "tasks/cancel")?;
    ensure(is_invalid(&again), || format!("a second cancel is answered {again}"))
}

// Shows with the driver of this folder, without `rescind check`, that right peers are right and wrong ones wrong.

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
