//! What a language server offers: its capabilities.

use std::path::Path;

use serde_json::{Value, json};

use super::draft::{Draft, Request, Use};
use super::mcp::witness;
use super::says;
use super::toml_text::inline;

/// Requests about a document: the capability, the method, and the params beside the document.
const SLOW: [(&str, &str); 7] = [
    ("referencesProvider", "textDocument/references"),
    ("renameProvider", "textDocument/rename"),
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

/// # Errors
/// If the document has no name.
pub(super) fn write(draft: &mut Draft, opening: &Value, document: Option<&Path>) -> Result<(), String> {
    if let Some(name) = says(opening, &["/result/serverInfo/name"]) {
        draft.note(&format!("The server says that it is {name}."));
    }
    let capabilities = opening.pointer("/result/capabilities").unwrap_or(&Value::Null);
    let offers = |name: &str| {
        capabilities.get(name).is_some_and(|value| !value.is_null() && *value != Value::Bool(false))
    };
    let (file, used) = match document {
        Some(path) => {
            let path = std::path::absolute(path)
                .map_err(|error| format!("{} cannot be used: {error}", path.display()))?;
            if !path.is_file() {
                return Err(format!("the file {} of --document is missing", path.display()));
            }
            (path.to_string_lossy().into_owned(), Use::Active)
        }
        None => ("big.txt".to_owned(), Use::Suggested),
    };

    draft.blank();
    match used {
        Use::Active => draft.note("The document is opened in each session. A scratch folder (`scratch = \"FOLDER\"`) is copied for each session."),
        Use::Suggested => {
            draft.note("Most requests are about a document. Put a large one beside this file, enter its name, and remove the `#`; or repeat --init");
            draft.note("with --document FILE. A scratch folder (`scratch = \"FOLDER\"`) is copied for each session.");
        }
    }
    let opened = json!({ "textDocument": {
        "uri": {"file-uri": file}, "languageId": language(&file), "version": 1, "text": {"file": file},
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

    draft.blank();
    draft.note("Runs long: seconds, and at least 20 times as long as the quick one. It takes a large document or workspace.");
    draft.note("If this is slow for your document, remove the `#`. What the server offers that may be slow:");
    let slow: Vec<&str> = SLOW.iter().filter(|(name, _)| offers(name)).map(|(_, method)| *method).collect();
    let workspace = offers("workspaceSymbolProvider").then_some("workspace/symbol");
    let all: Vec<&str> = slow.iter().copied().chain(workspace).collect();
    draft.note(&format!("  {}", if all.is_empty() { "none is declared".to_owned() } else { all.join(", ") }));
    draft.request(
        "slow",
        &about(all.first().copied().unwrap_or("textDocument/references"), &file),
        Use::Suggested,
    );

    draft.blank();
    draft.note("Answered at once, at any time, also while the slow request runs.");
    match QUICK.iter().find(|(name, _)| offers(name)) {
        Some((_, method)) => draft.request("quick", &about(method, &file), used),
        None => draft.request("quick", &about("textDocument/hover", &file), Use::Suggested),
    }
    draft.blank();
    draft.note("A long request that reports its progress, if there is one.");
    let mut progress = about(all.first().copied().unwrap_or("workspace/symbol"), &file);
    if let Some(params) = progress.params.as_object_mut() {
        params.insert("workDoneToken".to_owned(), json!("check"));
    }
    progress.notification = Some("$/progress");
    draft.request("progress", &progress, Use::Suggested);
    draft.blank();
    witness(draft);
    Ok(())
}

/// A request about a place in the document.
fn about(method: &str, file: &str) -> Request {
    let document = json!({ "uri": {"file-uri": file} });
    let position = json!({ "line": 0, "character": 0 });
    let params = match method {
        "workspace/symbol" => json!({ "query": "" }),
        "textDocument/references" => {
            json!({ "textDocument": document, "position": position, "context": {"includeDeclaration": true} })
        }
        "textDocument/rename" => {
            json!({ "textDocument": document, "position": position, "newName": "renamed" })
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
