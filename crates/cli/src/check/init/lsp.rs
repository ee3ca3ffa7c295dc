//! What a language server offers: its capabilities.

use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;

use rescind_testkit::Profile;
use rescind_testkit::dialects::DialectFacts;
use serde_json::{Value, json};

use super::draft::{Draft, Request, Use, inline, witness};
use super::measure::{Candidate, Measured, Meter, list};
use super::{Source, Talk, says};

/// Requests about a document that only read: the capability, the method, and how many places are tried.
const READING: [(&str, &str, Places); 10] = [
    ("documentSymbolProvider", "textDocument/documentSymbol", Places::Document),
    ("foldingRangeProvider", "textDocument/foldingRange", Places::Document),
    ("semanticTokensProvider", "textDocument/semanticTokens/full", Places::Document),
    ("diagnosticProvider", "textDocument/diagnostic", Places::Document),
    ("documentFormattingProvider", "textDocument/formatting", Places::Document),
    ("referencesProvider", "textDocument/references", Places::All),
    ("completionProvider", "textDocument/completion", Places::All),
    ("hoverProvider", "textDocument/hover", Places::First),
    ("documentHighlightProvider", "textDocument/documentHighlight", Places::First),
    ("workspaceSymbolProvider", "workspace/symbol", Places::Document),
];
/// Those that may be slow, and those that are quick, for a document that is not known.
const SLOW: [(&str, &str); 6] = [
    ("referencesProvider", "textDocument/references"),
    ("semanticTokensProvider", "textDocument/semanticTokens/full"),
    ("completionProvider", "textDocument/completion"),
    ("documentFormattingProvider", "textDocument/formatting"),
    ("diagnosticProvider", "textDocument/diagnostic"),
    ("documentSymbolProvider", "textDocument/documentSymbol"),
];
const QUICK: [(&str, &str); 4] = [
    ("hoverProvider", "textDocument/hover"),
    ("documentHighlightProvider", "textDocument/documentHighlight"),
    ("foldingRangeProvider", "textDocument/foldingRange"),
    ("documentSymbolProvider", "textDocument/documentSymbol"),
];

/// Where in the document a request is tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Places {
    /// It has no position.
    Document,
    First,
    All,
}

/// A line and a character, from 0, as LSP counts them.
type Position = (usize, usize);

/// Writes the profile. With a document, requests that only read are measured. `patience`: of one of them.
///
/// # Errors
/// If the document has no name, or cannot be read.
pub(super) async fn write(
    draft: &mut Draft,
    talk: Talk,
    source: &mut Source,
    facts: &'static DialectFacts,
    opening: &Value,
    document: Option<&Path>,
    patience: Duration,
) -> Result<Option<Talk>, String> {
    if let Some(name) = says(opening, &["/result/serverInfo/name"]) {
        draft.note(&format!("The server says that it is {name}."));
    }
    let capabilities = opening.pointer("/result/capabilities").unwrap_or(&Value::Null);
    let offers = |name: &str| {
        capabilities.get(name).is_some_and(|value| !value.is_null() && *value != Value::Bool(false))
    };
    let (file, used) = match document {
        Some(path) => (existing(path)?, Use::Active),
        None => ("big.txt".to_owned(), Use::Suggested),
    };

    write_session(draft, &file, used);
    let (talk, measured) = if used == Use::Active {
        let text = std::fs::read_to_string(&file)
            .map_err(|error| format!("the file {file} of --document cannot be read: {error}"))?;
        let session = Profile::from_toml(draft.so_far())
            .map_err(|error| format!("the setup of the session could not be written: {error}"))?;
        let places = places(&text);
        let candidates = READING.iter().filter(|(name, ..)| offers(name));
        let candidates =
            candidates.flat_map(|(_, method, tried)| candidates_of(method, *tried, &file, &places));
        let mut meter = Meter::new(source, facts, session, patience);
        meter.measure(talk, candidates.collect()).await
    } else {
        (Some(talk), Measured::default())
    };

    let guess = write_slow(draft, &measured, &offers, &file);
    write_quick(draft, &measured, &offers, &file, used);
    list(draft, &measured);
    draft.blank();
    draft.note("A long request that reports its progress, if there is one.");
    let mut progress = measured.slow().map_or(guess, |tried| tried.request.clone());
    if let Some(params) = progress.params.as_object_mut() {
        params.insert("workDoneToken".to_owned(), json!("check"));
    }
    progress.notification = Some("$/progress");
    draft.request("progress", &progress, Use::Suggested);
    draft.blank();
    witness(draft);
    Ok(talk)
}

/// The document that each session opens.
fn write_session(draft: &mut Draft, file: &str, used: Use) {
    draft.blank();
    match used {
        Use::Active => draft.note("The document is opened in each session. A scratch folder (`scratch = \"FOLDER\"`) is copied for each session."),
        Use::Suggested => {
            draft.note("Most requests are about a document. Put a large one beside this file, enter its name, and remove the `#`; or repeat --init");
            draft.note("with --document FILE. A scratch folder (`scratch = \"FOLDER\"`) is copied for each session.");
        }
    }
    let opened = json!({ "textDocument": {
        "uri": {"file-uri": file}, "languageId": language(file), "version": 1, "text": {"file": file},
    } });
    draft.lines(
        &[
            "[session]".to_owned(),
            "replies = { \"workspace/configuration\" = [ {} ], \"client/registerCapability\" = \"null\", \"window/workDoneProgress/create\" = \"null\" }".to_owned(),
            format!("setup = [ {{ notify = \"textDocument/didOpen\", params = {} }} ]", inline(&opened)),
        ],
        used,
    );
    draft.note("A server that loads for a while is waited for in the setup: { wait = \"textDocument/publishDiagnostics\", within_ms = 20000 }");
}

/// The slow request: the slowest that was measured, or a suggestion. Returns the suggestion.
fn write_slow(draft: &mut Draft, measured: &Measured, offers: &impl Fn(&str) -> bool, file: &str) -> Request {
    draft.blank();
    let slow: Vec<&str> = SLOW.iter().filter(|(name, _)| offers(name)).map(|(_, method)| *method).collect();
    let workspace = offers("workspaceSymbolProvider").then_some("workspace/symbol");
    let all: Vec<&str> = slow.iter().copied().chain(workspace).collect();
    let guess = about(all.first().copied().unwrap_or("textDocument/references"), file, (0, 0));
    draft.note("Runs long: seconds, and at least 20 times as long as the quick one. It takes a large document or workspace.");
    if let Some(tried) = measured.slow() {
        draft.note(&format!("The slowest of those that were tried, each time: {}", tried.times_in_words()));
        draft.request("slow", &tried.request, Use::Active);
    } else {
        if measured.any_answer() {
            draft.note("Nothing that was tried is slow each time, which is 50 ms and 20 times as long as the quick one: repeat --init with a larger document.");
        }
        draft.note(
            "If this is slow for your document, remove the `#`. What the server offers that may be slow:",
        );
        draft.note(&format!(
            "  {}",
            if all.is_empty() { "none is declared".to_owned() } else { all.join(", ") }
        ));
        draft.request("slow", &guess, Use::Suggested);
    }
    guess
}

/// The quick request: the quickest that was measured, or a suggestion.
fn write_quick(
    draft: &mut Draft,
    measured: &Measured,
    offers: &impl Fn(&str) -> bool,
    file: &str,
    used: Use,
) {
    draft.blank();
    draft.note("Answered at once, at any time, also while the slow request runs.");
    match (measured.quick(), QUICK.iter().find(|(name, _)| offers(name))) {
        (Some(tried), _) => {
            draft.note(&format!("It took {}", tried.times_in_words()));
            draft.request("quick", &tried.request, Use::Active);
        }
        (None, Some((_, method))) if !measured.any_answer() => {
            draft.request("quick", &about(method, file, (0, 0)), used);
        }
        (None, Some((_, method))) => draft.request("quick", &about(method, file, (0, 0)), Use::Suggested),
        (None, None) => draft.request("quick", &about("textDocument/hover", file, (0, 0)), Use::Suggested),
    }
}

/// The whole path of a document.
fn existing(document: &Path) -> Result<String, String> {
    let path = std::path::absolute(document)
        .map_err(|error| format!("{} cannot be used: {error}", document.display()))?;
    if !path.is_file() {
        return Err(format!("the file {} of --document is missing", path.display()));
    }
    Ok(path.to_string_lossy().into_owned())
}

fn candidates_of(method: &str, tried: Places, file: &str, places: &[Position]) -> Vec<Candidate> {
    let count = match tried {
        Places::Document | Places::First => 1,
        Places::All => places.len().max(1),
    };
    let at = |place: usize| {
        let (line, character) = places.get(place).copied().unwrap_or_default();
        let title = match tried {
            Places::Document => method.to_owned(),
            Places::First | Places::All => format!("{method} at {}:{}", line + 1, character + 1),
        };
        Candidate { request: about(method, file, (line, character)), title }
    };
    (0..count).map(at).collect()
}

/// A longer text is looked at to here only.
const MAX_TEXT: usize = 1 << 20;

/// Words before a name that is defined there, in one language or another.
const DEFINING: [&str; 16] = [
    "def",
    "class",
    "fn",
    "func",
    "function",
    "struct",
    "enum",
    "trait",
    "interface",
    "type",
    "let",
    "const",
    "var",
    "void",
    "int",
    "auto",
];

/// Words that are no names, in one language or another.
const NO_NAMES: [&str; 30] = [
    "return", "self", "this", "import", "from", "include", "public", "private", "static", "if", "else",
    "elif", "for", "while", "in", "is", "not", "and", "or", "None", "null", "true", "false", "new", "use",
    "pub", "mut", "std", "end", "then",
];

/// A few positions of names: the one that occurs most often, the defined one that occurs most often, one in the middle and
/// the last one.
fn places(text: &str) -> Vec<Position> {
    let text = text.get(..MAX_TEXT.min(text.len())).unwrap_or(text);
    let mut words: Vec<(&str, Position, bool)> = Vec::new();
    let mut counts: HashMap<&str, usize> = HashMap::new();
    for (line, content) in text.lines().enumerate() {
        let mut before = "";
        for (word, character) in words_of(content) {
            let is_name = word.len() > 1 && !NO_NAMES.contains(&word) && !DEFINING.contains(&word);
            if is_name {
                words.push((word, (line, character), DEFINING.contains(&before)));
                *counts.entry(word).or_default() += 1;
            }
            before = word;
        }
    }
    let count = |word: &str| counts.get(word).copied().unwrap_or_default();
    // Of those that occur as often the first.
    let most = |defined: bool| {
        let among = words.iter().filter(|(_, _, is_defined)| *is_defined || !defined);
        among.rev().max_by_key(|(word, ..)| count(word))
    };
    let some = [most(false), most(true), words.get(words.len() / 2), words.last()];
    let mut places: Vec<Position> = Vec::new();
    for (_, place, _) in some.into_iter().flatten() {
        if !places.contains(place) {
            places.push(*place);
        }
    }
    places
}

/// The words of a line, each with its first character as LSP counts them, which is in units of UTF-16.
fn words_of(line: &str) -> Vec<(&str, usize)> {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    let mut words = Vec::new();
    let mut begun = None;
    let mut units = 0;
    for (at, c) in line.char_indices().chain([(line.len(), ' ')]) {
        match begun {
            None if is_part(c) => begun = Some((at, units)),
            Some((from, character)) if !is_part(c) => {
                let word = line.get(from..at).filter(|word| !word.starts_with(char::is_numeric));
                words.extend(word.map(|word| (word, character)));
                begun = None;
            }
            _ => {}
        }
        units += c.len_utf16();
    }
    words
}

/// A request about a place in the document.
fn about(method: &str, file: &str, (line, character): Position) -> Request {
    let document = json!({ "uri": {"file-uri": file} });
    let position = json!({ "line": line, "character": character });
    let params = match method {
        "workspace/symbol" => json!({ "query": "" }),
        "textDocument/references" => {
            json!({ "textDocument": document, "position": position, "context": {"includeDeclaration": true} })
        }
        "textDocument/formatting" => {
            json!({ "textDocument": document, "options": {"tabSize": 4, "insertSpaces": true} })
        }
        "textDocument/completion" | "textDocument/hover" | "textDocument/documentHighlight" => {
            json!({ "textDocument": document, "position": position })
        }
        _ => json!({ "textDocument": document }),
    };
    Request::new(method, params)
}

/// LSP's name of a language, by the end of a file's name.
fn language(file: &str) -> String {
    let end = Path::new(file).extension().map(|end| end.to_string_lossy().to_ascii_lowercase());
    let end = end.unwrap_or_default();
    let known = match end.as_str() {
        "py" | "pyi" => "python",
        "ts" | "mts" | "cts" => "typescript",
        "tsx" => "typescriptreact",
        "js" | "mjs" | "cjs" => "javascript",
        "jsx" => "javascriptreact",
        "rs" => "rust",
        "cc" | "cpp" | "cxx" | "hpp" => "cpp",
        "h" => "c",
        "sh" | "bash" => "shellscript",
        "yml" => "yaml",
        "md" => "markdown",
        "htm" => "html",
        "rb" => "ruby",
        "txt" | "" => "plaintext",
        other => other,
    };
    known.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_places_are_names_that_occur_often() {
        let text =
            "import os\ndef often(x):\n    return often(x) + often(2)\ny = often(3) # \u{1f600} last\n";
        // Twice the same name: it occurs most often, and it is defined.
        assert_eq!(places(text), [(1, 4), (2, 22), (3, 18)]);
        assert_eq!(places("a 1 2"), []);
        assert_eq!(places(""), []);
        assert!(places(&"word other ".repeat(1 << 18)).len() <= 4);
    }

    #[test]
    fn a_word_begins_where_lsp_counts_it() {
        assert_eq!(words_of("\u{1f600}ab 1x _c"), [("ab", 2), ("_c", 8)]);
    }
}
