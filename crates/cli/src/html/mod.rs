//! `--html`: the report as one page that needs no other file and no network.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use rescind_testkit::runner::{Direction, TraceLine};
use rescind_testkit::{Answer, Cell, CellOutcome, Demand, Fact, Part, Report, scenarios};
use serde_json::{Value, json};

use crate::Failure;

const PAGE: &str = include_str!("page.html");
const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

/// The most characters of a frame in the page. The JSON has all of them.
const MAX_SHOWN_CHARS: usize = 2_000;

/// The file of a page. It is opened before a long run, so that the run does not fail at its end.
pub(crate) struct PageFile {
    path: PathBuf,
    file: File,
}

impl PageFile {
    /// Creates the file, or empties it.
    ///
    /// # Errors
    /// If it cannot be opened for writing.
    pub(crate) fn create(path: &Path) -> Result<Self, Failure> {
        match File::create(path) {
            Ok(file) => Ok(Self { path: path.to_owned(), file }),
            Err(error) => Err(failed(path, &error)),
        }
    }

    /// Writes the page.
    ///
    /// # Errors
    /// If the page cannot be written completely.
    pub(crate) fn write(mut self, report: &Report, wires: &[&str]) -> Result<(), Failure> {
        let page = page(report, wires);
        self.file.write_all(page.as_bytes()).map_err(|error| failed(&self.path, &error))
    }
}

fn failed(path: &Path, error: &io::Error) -> Failure {
    format!("the page could not be written to {}: {error}", path.display())
}

fn page(report: &Report, wires: &[&str]) -> String {
    let summary = report.summary;
    let summary_text = format!(
        "{} cells: {} held, {} broke, {}{} unsure, {} not asked",
        report.cells.len(),
        summary.held,
        summary.broke,
        if summary.deviating > 0 {
            format!("{} other than recommended or left open, ", summary.deviating)
        } else {
            String::new()
        },
        summary.unsure - summary.deviating,
        summary.not_asked
    );
    let data = safe(&data(report, wires).to_string());
    // The parts are replaced in the page's order, and inserted text is never searched: a peer's text may contain a
    // target.
    let mut page = String::with_capacity(PAGE.len() + STYLE.len() + SCRIPT.len() + data.len());
    let mut rest = PAGE;
    for (target, text) in
        [("{{style}}", STYLE), ("{{summary}}", &summary_text), ("{{data}}", &data), ("{{script}}", SCRIPT)]
    {
        let (before, after) = rest.split_once(target).unwrap_or((rest, ""));
        page.push_str(before);
        page.push_str(text);
        rest = after;
    }
    page.push_str(rest);
    page
}

/// JSON that cannot end a script element or begin a comment in one.
fn safe(json: &str) -> String {
    json.replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026")
}

/// Each text once: most frames are the same on every wire.
#[derive(Default)]
struct Texts {
    all: Vec<String>,
    places: HashMap<String, usize>,
}

impl Texts {
    fn target(&mut self, text: &str) -> usize {
        let text = cut(text);
        if let Some(target) = self.places.get(&text) {
            return *target;
        }
        self.all.push(text.clone());
        self.places.insert(text, self.all.len() - 1);
        self.all.len() - 1
    }
}

fn cut(text: &str) -> String {
    match text.char_indices().nth(MAX_SHOWN_CHARS) {
        None => text.to_owned(),
        Some((end, _)) => {
            format!("{}... ({} bytes in all)", text.get(..end).unwrap_or_default(), text.len())
        }
    }
}

/// The data for `page.js`: a cell is a list, its texts are indices in `texts`, and received frames have negative
/// numbers.
fn data(report: &Report, wires: &[&str]) -> Value {
    let calls: HashMap<&str, bool> =
        scenarios().iter().map(|s| (s.vector.name.as_str(), s.vector.role == Part::Call)).collect();
    let mut texts = Texts::default();
    let rows: Vec<Value> = report.cells.iter().map(|cell| row(cell, wires, &calls, &mut texts)).collect();
    let facts: Vec<Value> = report.facts.iter().map(|fact| fact_row(fact, &mut texts)).collect();
    json!({ "wires": wires, "texts": texts.all, "facts": facts, "cells": rows })
}

/// A fact is a list too: statement, answer, demand, detail, source, frames.
fn fact_row(fact: &Fact, texts: &mut Texts) -> Value {
    let answer = match (fact.answer, fact.demand) {
        (Answer::Yes, _) => 0,
        (Answer::No, Demand::Must) => 1,
        (Answer::NotAsked, _) => 2,
        (Answer::Unsure, _) => 3,
        (Answer::No, Demand::Should | Demand::Open) => 4,
    };
    let demand = match fact.demand {
        Demand::Must => "a must",
        Demand::Should => "recommended",
        Demand::Open => "left open",
    };
    json!([
        texts.target(&fact.statement),
        answer,
        texts.target(demand),
        texts.target(&fact.detail),
        texts.target(&fact.source),
        trace_numbers(&fact.trace, texts),
    ])
}

/// Each frame by the number of its text. Those that were received have negative numbers.
fn trace_numbers(trace: &[TraceLine], texts: &mut Texts) -> Vec<i64> {
    let numbers = trace.iter().map(|line| {
        let target = i64::try_from(texts.target(&line.text)).unwrap_or_default();
        match line.direction {
            Direction::Sent => target,
            Direction::Received => -1 - target,
        }
    });
    numbers.collect()
}

fn row(cell: &Cell, wires: &[&str], calls: &HashMap<&str, bool>, texts: &mut Texts) -> Value {
    let outcome = match cell.outcome {
        CellOutcome::Held => 0,
        CellOutcome::Broke => 1,
        CellOutcome::NotAsked => 2,
        CellOutcome::Unsure => 3,
    };
    let trace = trace_numbers(&cell.trace, texts);
    let sources: Vec<usize> = cell.sources.iter().map(|source| texts.target(source)).collect();
    json!([
        texts.target(&cell.dialect),
        wires.iter().position(|wire| *wire == cell.wire),
        texts.target(&cell.scenario),
        outcome,
        texts.target(&cell.why),
        cell.cancel_us,
        sources,
        trace,
        i32::from(calls.get(cell.scenario.as_str()).copied().unwrap_or_default()),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(said: &[&str]) -> Report {
        let scenario = scenarios().first().unwrap();
        let cells = ["memory", "stdio"].map(|wire| {
            let mut cell = Cell::not_asked(scenario, wire, said.concat());
            cell.trace = said.iter().map(|text| TraceLine::new(Direction::Received, *text)).collect();
            cell
        });
        Report::new(cells.to_vec())
    }

    /// The data as the page's script reads it.
    fn read_back(page: &str) -> Value {
        let (_, rest) = page.split_once(r#"id="data">"#).unwrap();
        let (data, _) = rest.split_once("</script>").unwrap();
        serde_json::from_str(data).unwrap()
    }

    #[test]
    fn text_of_a_peer_is_escaped_in_the_html_page() {
        let hostile =
            ["</script><script>alert(1)</script>", "<!--<script>", "{{script}}", "{{data}}", "&lt;\u{2028}"];
        let page = page(&report(&hostile), &["memory", "stdio"]);
        let elements = |of: &str| of.matches("<script").count();
        assert_eq!(elements(&page), elements(PAGE));
        assert_eq!(page.matches("</script").count(), PAGE.matches("</script").count());
        assert!(!page.contains("<!--"));
        let data = read_back(&page);
        let texts: Vec<&str> = data["texts"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
        for text in hostile {
            assert!(texts.contains(&text), "{text} is not in the page as it was sent");
        }
    }

    #[test]
    fn the_html_page_loads_no_external_resource() {
        let page = page(&report(&["{}"]), &["memory", "stdio"]);
        for word in ["src=", "href=", "@import", "url(", "fetch(", "{{"] {
            assert!(!page.contains(word), "{word}");
        }
        // The namespace of SVG's elements is an address, but it is never fetched.
        assert_eq!(page.matches("http://").count(), 1);
        assert_eq!(page.matches("https://").count(), 0);
    }

    #[test]
    fn a_fact_is_in_the_page_with_its_answer_and_its_frames() {
        let fact = |answer, demand| {
            let mut fact = Fact::new("answers_once", "answers each request once", answer, demand);
            fact.detail = "<b>".to_owned();
            fact.trace = vec![TraceLine::new(Direction::Received, "{\"id\":1}")];
            fact
        };
        let facts = vec![
            fact(Answer::Yes, Demand::Must),
            fact(Answer::No, Demand::Must),
            fact(Answer::NotAsked, Demand::Open),
            fact(Answer::Unsure, Demand::Must),
            fact(Answer::No, Demand::Should),
        ];
        let data = read_back(&page(&Report::of_a_peer(Vec::new(), facts, Vec::new()), &["stdio"]));
        let rows = data["facts"].as_array().unwrap();
        let answers: Vec<i64> = rows.iter().map(|row| row[1].as_i64().unwrap()).collect();
        assert_eq!(answers, [0, 1, 2, 3, 4]);
        let text =
            |at: &Value| data["texts"][usize::try_from(at.as_u64().unwrap()).unwrap()].as_str().unwrap();
        assert_eq!((text(&rows[0][0]), text(&rows[0][3])), ("answers each request once", "<b>"));
        assert_eq!((text(&rows[0][2]), text(&rows[4][2])), ("a must", "recommended"));
        let frame = usize::try_from(-1 - rows[0][5][0].as_i64().unwrap()).unwrap();
        assert_eq!(data["texts"][frame], "{\"id\":1}");
    }

    #[test]
    fn each_text_is_in_the_html_page_once_and_a_long_one_is_truncated() {
        let long = "é".repeat(1 << 20);
        let page = page(&report(&["{\"once\":1}", "{\"once\":1}", &long]), &["memory", "stdio"]);
        assert!(page.len() < 64 * 1024, "{}", page.len());
        let data = read_back(&page);
        let (first, second) = (&data["cells"][0], &data["cells"][1]);
        assert_eq!((&first[1], &second[1]), (&json!(0), &json!(1)));
        let trace = first[7].as_array().unwrap();
        assert_eq!(trace[0], trace[1]);
        assert_eq!(first[7], second[7]);
        let text = |at: &Value| {
            let target = usize::try_from(-1 - at.as_i64().unwrap()).unwrap();
            data["texts"][target].as_str().unwrap().to_owned()
        };
        assert_eq!(text(&trace[0]), "{\"once\":1}");
        assert!(text(&trace[2]).ends_with("(2097152 bytes in all)"));
    }
}
