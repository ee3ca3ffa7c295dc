//! The table of wrong peers in `docs/check.md`, which is printed from the data.

use std::fmt::Write as _;

use libtest_mimic::{Failed, Trial};

use crate::table::{RIGHT, Row, WRONG};

const BEGIN: &str = "<!-- wrong peers -->\n";
const END: &str = "<!-- end of wrong peers -->";
const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/check.md");

/// With `RESCIND_PRINT` in the environment the page is updated instead.
pub(crate) fn trial() -> Trial {
    Trial::test("page::the_table_of_wrong_peers_is_up_to_date", || {
        let page = std::fs::read_to_string(PAGE)?;
        let parts = page.split_once(BEGIN).and_then(|(head, rest)| Some((head, rest.split_once(END)?.1)));
        let (head, tail) = parts.ok_or("docs/check.md has no place for the table")?;
        let renewed = format!("{head}{BEGIN}{}{END}{tail}", table());
        if std::env::var_os("RESCIND_PRINT").is_some() {
            std::fs::write(PAGE, renewed)?;
        } else if page != renewed {
            let how =
                "renew it: RESCIND_PRINT=docs/check.md cargo test -p rescind-cli --test foreign_peers page";
            return Err(Failed::from(how));
        }
        Ok(())
    })
}

fn table() -> String {
    let mut out =
        "\n| the peer | dialects | facts that are `no` | evidence | exit code |\n|---|---|---|---|---|\n"
            .to_owned();
    for Row { does, dialects, told, exit, .. } in &WRONG {
        let facts = told.iter().map(|(fact, _)| format!("`{fact}`")).collect::<Vec<_>>();
        let mut evidence = told.iter().map(|(_, evidence)| *evidence).collect::<Vec<_>>();
        evidence.dedup();
        let (mut facts, evidence) = (facts.join(", "), evidence.join(", "));
        if told.is_empty() {
            "none: no session can be held".clone_into(&mut facts);
        }
        let _ = writeln!(out, "| {does} | {} | {facts} | {evidence} | {exit} |", dialects.join(", "));
    }
    let checks = RIGHT.iter().map(|row| row.dialects.len()).sum::<usize>();
    let _ = writeln!(
        out,
        "\n{checks} right peers, which are awkward in other ways, have no such fact, no scenario that `broke`, and exit code 0."
    );
    out
}
