//! Every vector on the bare machine.

#![expect(clippy::expect_used, reason = "what the tests share is part of them")]

use rescind_core::dialect::Dialect;
use rescind_testkit::runner::Verdict;
use rescind_testkit::{BareMachine, Scenario, scenarios, scenarios_of};

/// A description of the failure, with everything that was sent and received.
fn broken(scenario: &Scenario) -> Option<String> {
    let dialect = Dialect::by_name(scenario.dialect).expect("every folder is named after a dialect");
    let played = BareMachine::play(&dialect, scenario);
    match played.verdict {
        Verdict::Held => None,
        Verdict::Broke { why, step, .. } => {
            let trace: Vec<_> =
                played.trace.iter().map(|line| format!("    {:?} {}", line.direction, line.text)).collect();
            Some(format!(
                "{}/{} step {step}: {why}\n{}",
                scenario.dialect,
                scenario.vector.name,
                trace.join("\n")
            ))
        }
        // A need that the vector itself states is not a gap.
        Verdict::NotAsked { .. } if !scenario.vector.needs.is_empty() => None,
        Verdict::NotAsked { why } | Verdict::Unsure { why } => {
            Some(format!("{}/{}: not asked: {why}", scenario.dialect, scenario.vector.name))
        }
    }
}

fn all_hold(dialect: &str) {
    let only = std::env::var("VECTOR").ok();
    let wanted = |scenario: &&Scenario| only.as_ref().is_none_or(|name| scenario.vector.name == *name);
    let broken: Vec<_> = scenarios_of(dialect).filter(wanted).filter_map(broken).collect();
    assert!(broken.is_empty(), "{} broke:\n{}", broken.len(), broken.join("\n"));
}

#[test]
fn acp_holds() {
    all_hold("acp");
}

#[test]
fn acp_v2_holds() {
    all_hold("acp-v2");
}

#[test]
fn acp_draft_holds() {
    all_hold("acp-draft");
}

#[test]
fn lsp_holds() {
    all_hold("lsp");
}

#[test]
fn mcp_holds() {
    all_hold("mcp");
}

#[test]
fn mcp_2026_holds() {
    all_hold("mcp-2026");
}

#[test]
fn abp_holds() {
    all_hold("abp");
}

#[test]
fn every_dialect_has_vectors() {
    for dialect in &rescind_core::dialect::ALL {
        assert!(scenarios().iter().any(|scenario| scenario.dialect == dialect.name()), "{}", dialect.name());
    }
}
