//! Requests on the command line: `--slow 'METHOD JSON'` and its siblings.

use rescind_testkit::{Profile, ProfileRequest, RequestKind};
use serde_json::{Value, json};

use crate::Failure;
use crate::args::Check;

/// Adds the requests of the command line to a profile. They replace those of the same kind.
///
/// # Errors
/// One sentence that names the option, if its value is not a method and a JSON object.
pub(super) fn add(args: &Check, profile: &mut Profile) -> Result<(), Failure> {
    let given = [
        ("--slow", RequestKind::Slow, &args.slow),
        ("--quick", RequestKind::Quick, &args.quick),
        ("--progress", RequestKind::Progress, &args.progress),
    ];
    for (option, kind, text) in given {
        let Some(text) = text else { continue };
        let mut request = read(text).map_err(|why| {
            format!("{option} is not as it should be: {why}; write it as {option} 'METHOD {{\"name\": ..}}'")
        })?;
        if kind == RequestKind::Progress {
            request.notification = Some(notification(args.dialect).to_owned());
            add_token(args.dialect, &mut request.params);
        }
        profile.requests.insert(kind, request);
    }
    Ok(())
}

fn read(text: &str) -> Result<ProfileRequest, String> {
    let text = text.trim();
    let (method, params) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
    if method.is_empty() || method.starts_with(['{', '[', '"']) {
        return Err("it does not begin with a method".to_owned());
    }
    let params = match params.trim() {
        "" => json!({}),
        params => {
            serde_json::from_str(params).map_err(|error| format!("its params are not JSON ({error})"))?
        }
    };
    if !params.is_object() && !params.is_array() {
        return Err("its params are not a JSON object".to_owned());
    }
    Ok(ProfileRequest::new(method, params))
}

/// The notification that reports progress in a dialect.
fn notification(dialect: &str) -> &'static str {
    match dialect {
        "lsp" => "$/progress",
        "mcp" | "mcp-2026" => "notifications/progress",
        "abp" => "progress",
        _ => "session/update",
    }
}

/// A request that names no token gets one, as a peer reports no progress without it.
fn add_token(dialect: &str, params: &mut Value) {
    let Some(members) = params.as_object_mut() else { return };
    match dialect {
        "lsp" => {
            members.entry("workDoneToken").or_insert_with(|| json!("check"));
        }
        "mcp" | "mcp-2026" => {
            let meta = members.entry("_meta").or_insert_with(|| json!({}));
            if let Some(meta) = meta.as_object_mut() {
                meta.entry("progressToken").or_insert_with(|| json!("check"));
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_a_method_and_maybe_params() {
        let request = read(" tools/call  {\"name\": \"long one\"} ").unwrap();
        assert_eq!((request.method.as_str(), request.params), ("tools/call", json!({ "name": "long one" })));
        assert_eq!(read("ping").unwrap().params, json!({}));
        for (text, word) in [
            ("", "begin with a method"),
            ("{\"a\": 1}", "begin with a method"),
            ("m {a: 1}", "not JSON (key must be a string at line 1 column 2)"),
            ("m {} {}", "not JSON (trailing"),
            ("m 7", "not a JSON object"),
        ] {
            let why = read(text).unwrap_err();
            assert!(why.contains(word), "{text}: {why}");
        }
    }

    #[test]
    fn a_progress_request_gets_the_token_of_its_dialect_unless_it_has_one() {
        for (dialect, given, expected) in [
            ("mcp", json!({}), json!({ "_meta": {"progressToken": "check"} })),
            ("mcp", json!({ "_meta": {"progressToken": 7} }), json!({ "_meta": {"progressToken": 7} })),
            ("lsp", json!({}), json!({ "workDoneToken": "check" })),
            ("lsp", json!({ "workDoneToken": "w" }), json!({ "workDoneToken": "w" })),
            ("acp", json!({}), json!({})),
        ] {
            let mut params = given;
            add_token(dialect, &mut params);
            assert_eq!(params, expected, "{dialect}");
        }
    }
}
