//! A profile as it is written: tables, and the same in comments where a person has to decide.

use std::fmt::Write as _;

use serde_json::Value;

use super::toml_text::{comment, inline, string};

/// A request of a profile.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Request {
    pub(super) method: String,
    pub(super) params: Value,
    pub(super) cancelled: Option<Value>,
    pub(super) notification: Option<&'static str>,
}

impl Request {
    pub(super) fn new(method: impl Into<String>, params: Value) -> Self {
        Self { method: method.into(), params, cancelled: None, notification: None }
    }
}

/// Whether a part of the profile is used as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    Active,
    /// It is commented out, for a person to edit.
    Suggested,
}

/// The text of a profile.
#[derive(Clone, Debug, Default)]
pub(super) struct Draft(String);

impl Draft {
    pub(super) fn new(name: &str) -> Self {
        let mut draft = Self::default();
        draft.note("A profile of `rescind check`. Lines that begin with `#` are comments; edit what they say, and then run");
        draft.note("  rescind check --dialect D --profile THIS-FILE -- COMMAND");
        let _ = writeln!(draft.0, "name = {}", string(name));
        draft
    }

    /// A line of explanation. Text of the peer in it is made safe.
    pub(super) fn note(&mut self, text: &str) {
        let indent = if text.starts_with("  ") { "  " } else { "" };
        let _ = writeln!(self.0, "# {indent}{}", comment(text));
    }

    pub(super) fn blank(&mut self) {
        self.0.push('\n');
    }

    /// Lines of TOML.
    pub(super) fn lines(&mut self, lines: &[String], used: Use) {
        let sign = match used {
            Use::Active => "",
            Use::Suggested => "#",
        };
        for line in lines {
            let _ = writeln!(self.0, "{sign}{line}");
        }
    }

    /// `[requests.KIND]`.
    pub(super) fn request(&mut self, kind: &str, request: &Request, used: Use) {
        let mut lines = vec![
            format!("[requests.{kind}]"),
            format!("method = {}", string(&request.method)),
            format!("params = {}", inline(&request.params)),
        ];
        if let Some(cancelled) = &request.cancelled {
            lines.push(format!("cancelled = {}", inline(cancelled)));
        }
        if let Some(notification) = request.notification {
            lines.push(format!("notification = {}", string(notification)));
        }
        self.lines(&lines, used);
    }

    /// What is written so far.
    pub(super) fn so_far(&self) -> &str {
        &self.0
    }

    pub(super) fn text(self) -> String {
        self.0
    }
}

/// Whether a name or a description suggests long work.
pub(super) fn sounds_slow(name: &str) -> bool {
    has_word(name, &["long", "slow", "sleep", "wait", "longrunning", "delay", "countdown"])
}

/// Whether a description suggests work that may take long.
pub(super) fn may_be_slow(text: &str) -> bool {
    sounds_slow(text)
        || has_word(
            text,
            &[
                "run",
                "exec",
                "execute",
                "search",
                "crawl",
                "build",
                "index",
                "generate",
                "simulate",
                "operation",
                "research",
                "scan",
                "analyze",
            ],
        )
}

pub(super) fn sounds_like_progress(text: &str) -> bool {
    has_word(text, &["progress", "long", "longrunning", "stream", "notifications"])
}

/// Whether one of the words of a name (`longRunningOperation`, `long-running`) or of a text is one of these.
fn has_word(text: &str, words: &[&str]) -> bool {
    let mut split = String::new();
    let mut was_small = false;
    for c in text.chars() {
        if c.is_uppercase() && was_small {
            split.push(' ');
        }
        was_small = c.is_lowercase();
        split.extend(c.to_lowercase());
    }
    split.split(|c: char| !c.is_alphanumeric()).any(|word| words.contains(&word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_of_a_name_tell_whether_it_is_slow() {
        for name in ["longRunningOperation", "trigger-long-running-operation", "sleep", "Wait_For", "slow"] {
            assert!(sounds_slow(name), "{name}");
        }
        for name in ["echo", "belong", "prolonged", "waiter"] {
            assert!(!sounds_slow(name), "{name}");
        }
        assert!(may_be_slow("Run a command") && !may_be_slow("Trunk"));
    }
}
