//! Vectors on wires, as in the matrix: those that catch a planted bug.

use rescind_testkit::runner::Settings;
use rescind_testkit::wires::{Program, play_on};
use rescind_testkit::{CellOutcome, scenarios_of};

use crate::HANG;

async fn holds(wire: &str, dialect: &str, vector: &str, quick_handlers: Option<bool>) {
    let scenario = scenarios_of(dialect).find(|scenario| scenario.vector.name == vector);
    let mut scenario = scenario.expect("the vector is there").clone();
    scenario.vector.options.quick_handlers = quick_handlers;
    let mut settings = Settings::default();
    settings.deadline = HANG;
    let program = Program::this().expect("the system tells");
    let cell = play_on(wire, &scenario, &settings, &program).await.expect("the wire is there");
    let covers = scenario.vector.covers.join(", ");
    assert!(cell.outcome == CellOutcome::Held, "{covers}: {:?}: {}", cell.outcome, cell.why);
}

macro_rules! cells {
    ($($name:ident: $wire:literal, $dialect:literal, $vector:literal, $quick:expr;)*) => {
        $(
            #[tokio::test]
            async fn $name() {
                holds($wire, $dialect, $vector, $quick).await;
            }
        )*
    };
}

cells! {
    memory_acp_call_completes: "memory", "acp", "call_completes", None;
    http_stateless_mcp_2026_cancel_running: "http-stateless", "mcp-2026", "cancel_running", None;
    http_streamable_acp_early_cancel_waits: "http-streamable", "acp", "early_cancel_waits", None;
    quick_memory_lsp_deaf_handler_grace: "memory", "lsp", "deaf_handler_grace", Some(true);
}
