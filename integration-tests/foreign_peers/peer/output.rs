//! What is written: frames to stdout, logs to stderr.

use std::io::{Write as _, stderr, stdout};
use std::sync::{Mutex, PoisonError};

use serde_json::{Value, json};

use super::flags::{Fault, Flags, Manner};
use super::framing::Framing;

/// Writes whole frames, from any thread.
#[derive(Debug)]
pub(super) struct Output {
    framing: Framing,
    other_framing: bool,
    pieces: bool,
    /// The faults in the form of messages.
    faults: Vec<Fault>,
    whole: Mutex<()>,
}

const FORMS: [Fault; 7] = [
    Fault::TextIds,
    Fault::FractionIds,
    Fault::NoVersion,
    Fault::AnswersInArray,
    Fault::ErrorIsText,
    Fault::ByteOrderMark,
    Fault::LoneSurrogate,
];

impl Output {
    pub(super) fn new(framing: Framing, flags: &Flags) -> Self {
        Self {
            framing,
            other_framing: flags.is(Manner::OtherFraming),
            pieces: flags.is(Manner::Pieces),
            faults: FORMS.into_iter().filter(|fault| flags.has(*fault)).collect(),
            whole: Mutex::new(()),
        }
    }

    pub(super) fn send(&self, message: &Value) {
        let mut text = message.to_string();
        if message.get("method").is_none() && message.get("id").is_some() {
            text = self.misspelt(message.clone());
        }
        if self.faults.contains(&Fault::ByteOrderMark) {
            text.insert(0, '\u{feff}');
        }
        self.write(&self.framing.frame(&text, self.other_framing));
    }

    /// An answer, with the faults that all answers of this peer have.
    fn misspelt(&self, mut answer: Value) -> String {
        let mut text = None;
        for fault in &self.faults {
            let Some(members) = answer.as_object_mut() else { break };
            let id = members.get("id").filter(|id| id.is_number()).cloned();
            match (fault, id) {
                (Fault::TextIds, Some(id)) => drop(members.insert("id".to_owned(), id.to_string().into())),
                (Fault::FractionIds, Some(id)) => drop(members.insert("id".to_owned(), json!(id.as_f64()))),
                (Fault::NoVersion, _) => drop(members.remove("jsonrpc")),
                (Fault::AnswersInArray, _) => answer = json!([answer]),
                (Fault::ErrorIsText, _) => {
                    if let Some(error) = members.get_mut("error") {
                        *error = error.get("message").cloned().unwrap_or_default();
                    }
                }
                (Fault::LoneSurrogate, _) => {
                    if let Some(result) = members.get_mut("result").and_then(Value::as_object_mut) {
                        result.insert("half".to_owned(), json!("HALF"));
                        text = Some(answer.to_string().replace("\"HALF\"", "\"\\ud83d\""));
                    }
                }
                _ => {}
            }
        }
        text.unwrap_or_else(|| answer.to_string())
    }

    pub(super) fn write(&self, bytes: &[u8]) {
        let _whole = self.whole.lock().unwrap_or_else(PoisonError::into_inner);
        let (head, tail) = bytes.split_at(if self.pieces { bytes.len() / 2 } else { 0 });
        // A client that is gone needs no answer.
        for part in [head, tail] {
            drop(stdout().write_all(part));
            drop(stdout().flush());
        }
    }

    /// Waits for the frame that is being written, and writes no other: the program is about to exit.
    pub(super) fn close(&self) {
        std::mem::forget(self.whole.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

/// A line on stderr, which both protocols leave to logs.
pub(super) fn log(line: &str) {
    drop(writeln!(stderr(), "{line}"));
}
