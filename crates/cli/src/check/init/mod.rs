//! `rescind check --init`: starts or reaches a peer, asks what it offers, measures requests that only read, and writes a
//! profile for it.

mod abp;
mod acp;
mod draft;
mod lsp;
mod mcp;
mod measure;
mod schema;
mod toml_text;

use std::path::PathBuf;
use std::time::Duration;

use rescind_testkit::Profile;
use serde_json::Value;

use self::draft::Draft;
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
    let talk = match args.dialect {
        "mcp" | "mcp-2026" => mcp::write(&mut draft, talk, source, args.dialect, &opening, patience).await?,
        "lsp" => lsp::write(&mut draft, talk, source, &opening, args.document.as_deref(), patience).await?,
        "abp" => {
            abp::write(&mut draft, &opening);
            Some(talk)
        }
        _ => {
            let mut talk = talk;
            acp::write(&mut draft, &mut talk, &opening).await?;
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
