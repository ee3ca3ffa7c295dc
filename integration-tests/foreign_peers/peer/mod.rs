//! A program that speaks MCP (2025-11-25), LSP (3.17) or ACP (version 1) over its stdin and stdout, written from the
//! specifications with threads of the standard library. It uses no code of the library that tests it.
//!
//! `foreign-peer DIALECT [--work=MS] [--MANNER].. [--FAULT]..`: a manner is correct and awkward, a fault is wrong.
//! `flags.rs` lists both.
//!
//! The main thread reads stdin. It does not wait for a request that works. Such a request has a thread of its own, or with
//! `--serial` they share one. All that they share is in `requests.rs`, behind one lock and one condition variable.

mod acp;
mod flags;
mod framing;
mod helper;
mod lsp;
mod mcp;
mod output;
mod requests;
mod rpc;
mod serve;
mod work;

use std::io::{BufReader, stdin};
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use self::flags::{DIALECTS, Flags, Manner};
use self::framing::Framing;
use self::requests::Peer;
use self::serve::Protocol;

/// Runs until stdin ends or the protocol says that the program exits.
pub(crate) fn run(mut arguments: impl Iterator<Item = String>) -> ExitCode {
    let dialect = arguments.next().unwrap_or_default();
    if dialect == helper::ARGUMENT {
        return helper::run();
    }
    let flags = match Flags::read(arguments) {
        Ok(flags) => flags,
        Err(unknown) => {
            output::log(&format!("`{unknown}` is no option of foreign-peer"));
            return ExitCode::from(2);
        }
    };
    let (framing, protocol): (_, Box<dyn Protocol>) = match dialect.as_str() {
        "mcp" => (Framing::Newline, Box::new(mcp::Mcp::default())),
        "lsp" => (Framing::ContentLength, Box::new(lsp::Lsp::default())),
        "acp" => (Framing::Newline, Box::new(acp::Acp::default())),
        _ => {
            output::log(&format!("the first argument is one of {DIALECTS:?}, not `{dialect}`"));
            return ExitCode::from(2);
        }
    };
    if flags.is(Manner::StderrNoise) {
        // More than a pipe holds: a client that does not read it blocks this program.
        for line in 0..2000 {
            output::log(&format!("[{line}] loading the modules of foreign-peer, which takes many lines"));
        }
    }
    let helper = flags.is(Manner::Forks).then(helper::Helper::start).flatten();
    let peer = Arc::new(Peer::new(flags, framing, protocol, helper));
    if peer.flags.is(Manner::SlowStart) {
        thread::sleep(Duration::from_secs(2));
    }
    let code = serve(&peer, framing);
    peer.output.close();
    code
}

fn serve(peer: &Arc<Peer>, framing: Framing) -> ExitCode {
    let mut input = BufReader::new(stdin().lock());
    loop {
        match framing.read(&mut input) {
            Ok(Some(frame)) => {
                if let Some(code) = peer.recv(&frame) {
                    return code;
                }
            }
            Ok(None) => break,
            Err(error) => {
                output::log(&format!("stdin: {error}"));
                return ExitCode::FAILURE;
            }
        }
    }
    if peer.flags.is(Manner::Lingers) {
        thread::sleep(Duration::from_secs(30));
    }
    ExitCode::SUCCESS
}
