//! Simulation of whole connections, for each transport and each protocol (VERIFICATION: "simulation").
//!
//! `RESCIND_SEED=n` plays that seed and prints the events. `RESCIND_SEEDS=n` plays this many seeds in memory, and a
//! tenth of that on each other transport.
#![expect(clippy::expect_used, clippy::unwrap_used, reason = "what the tests share is part of them")]

use rescind_verification::coverage;
use rescind_verification::sim::{Case, Wire};

/// The number of seeds in memory, over all protocols, unless the environment sets it.
const SEEDS: u64 = if cfg!(debug_assertions) { 1_400 } else { 100_000 };
/// The number of seeds in which a planted bug must show. The run stops at the first failure, so few of them are
/// played.
const SEEDS_WITH_BUG: u64 = 20_000;

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")))
}

fn every_seed_holds(test: &str, wire: Wire, dialect: &str, share: u64) {
    let case = Case::new(wire, dialect).unwrap();
    if let Some(seed) = number("RESCIND_SEED") {
        match case.play(seed) {
            Ok(run) => println!("{}\nseed {seed} held", run.trace.join("\n")),
            Err(failure) => panic!("{}", failure.report(test)),
        }
        return;
    }
    let all = if std::env::var_os("RESCIND_FAILPOINT").is_some() { SEEDS_WITH_BUG } else { SEEDS };
    let seeds = number("RESCIND_SEEDS").unwrap_or(all).div_ceil(share);
    match case.play_many(0, seeds) {
        Ok(played) => {
            let lacks = played.tally.lacks(wire, played.seeds);
            assert!(lacks.is_empty(), "{test} holds, but too little came to pass: {}", lacks.join("; "));
            println!("{test} judged {}", played.judged);
            let misjudged = case.misjudged(&played);
            assert!(misjudged.is_empty(), "{test} holds, but not as the page says: {}", misjudged.join("; "));
            let far = format!("{} seeds, {} events, {} cancels", played.seeds, played.events, played.cancels);
            coverage::reached("simulation", test.trim_start_matches("sim_"), &far)
                .expect("the table can be written");
        }
        Err(failure) => panic!("{}", failure.report(test)),
    }
}

macro_rules! simulations {
    ($($name:ident: $wire:ident, $dialect:literal, 1/$share:literal;)*) => {
        /// The transport of each simulation and its share of the seeds.
        const SHARES: &[(Wire, u64)] = &[$((Wire::$wire, $share)),*];

        $(
            #[test]
            fn $name() {
                every_seed_holds(stringify!($name), Wire::$wire, $dialect, $share);
            }
        )*
    };
}

simulations! {
    sim_memory_acp: Memory, "acp", 1/7;
    sim_memory_acp_v2: Memory, "acp-v2", 1/7;
    sim_memory_acp_draft: Memory, "acp-draft", 1/7;
    sim_memory_lsp: Memory, "lsp", 1/7;
    sim_memory_mcp: Memory, "mcp", 1/7;
    sim_memory_mcp_2026: Memory, "mcp-2026", 1/7;
    sim_memory_abp: Memory, "abp", 1/7;
    sim_websocket_acp: WebSocket, "acp", 1/40;
    sim_websocket_lsp: WebSocket, "lsp", 1/40;
    sim_websocket_mcp: WebSocket, "mcp", 1/40;
    sim_websocket_abp: WebSocket, "abp", 1/40;
    sim_http_streamable_acp: HttpStreamable, "acp", 1/40;
    sim_http_streamable_lsp: HttpStreamable, "lsp", 1/40;
    sim_http_streamable_mcp: HttpStreamable, "mcp", 1/40;
    sim_http_streamable_abp: HttpStreamable, "abp", 1/40;
    sim_http_stateless_mcp_2026: HttpStateless, "mcp-2026", 1/10;
    sim_http_acp_acp: HttpAcp, "acp", 1/20;
    sim_http_acp_acp_v2: HttpAcp, "acp-v2", 1/20;
}

/// A share that does not divide evenly is rounded up, so that the total is at least the requested number.
#[test]
fn sim_each_wire_has_all_its_seeds() {
    let wires = [
        (Wire::Memory, 100_000),
        (Wire::WebSocket, 10_000),
        (Wire::HttpStreamable, 10_000),
        (Wire::HttpStateless, 10_000),
        (Wire::HttpAcp, 10_000),
    ];
    for (wire, least) in wires {
        let shares = SHARES.iter().filter(|(of, _)| *of == wire);
        let seeds: u64 = shares.map(|(_, share)| 100_000_u64.div_ceil(*share)).sum();
        assert!(seeds >= least, "{wire:?} has {seeds} seeds");
    }
}

/// Checks that two runs of a seed have the same trace, and shows the first difference.
fn runs_alike(wire: Wire, dialect: &str) {
    let case = Case::new(wire, dialect).unwrap();
    for seed in 0..number("RESCIND_TWICE").unwrap_or(20) {
        let play = || case.play(seed).map_or_else(|failure| failure.trace, |run| run.trace);
        let (first, second) = (play(), play());
        let differs = first.iter().zip(&second).find(|(one, other)| one != other);
        assert_eq!(differs, None, "seed {seed} is not played the same twice on {wire:?} in {dialect}");
        assert_eq!(first.len(), second.len(), "seed {seed} is not as long the second time");
    }
}

#[test]
fn sim_a_seed_gives_the_same_trace_twice() {
    for dialect in ["acp", "mcp", "abp"] {
        runs_alike(Wire::Memory, dialect);
        runs_alike(Wire::WebSocket, dialect);
        runs_alike(Wire::HttpStreamable, dialect);
    }
    runs_alike(Wire::HttpStateless, "mcp-2026");
    runs_alike(Wire::HttpAcp, "acp");
}
