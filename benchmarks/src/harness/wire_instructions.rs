//! Instructions of the server's side of an echo between two processes, counted by callgrind.

use super::budgets::ONE_CORE;
use super::competitors::Place;
use super::figures::{Figure, Row};
use super::single_thread::NOT_COUNTED;
use super::{Results, Run};
use crate::cross_process::{Far, OurClient, Serves, Wire};
use crate::raw::{self, RawClient};
use crate::subjects;

/// The measure.
pub(super) const MEASURE: &str = "instructions of the server's side";
/// The transports whose server is counted.
pub(super) const WIRES: [Wire; 5] =
    [Wire::Streamable, Wire::Stateless, Wire::Streamable2, Wire::Stateless2, Wire::Acp];
/// The echoes of two runs whose difference counts, so that what comes before and after them is not included.
const FEW: usize = 200;
const COUNTED: usize = 1000;
/// How often each run is counted. The least is used: timers and the seeds of the hash tables only add to a count.
const TIMES: usize = 2;

/// Counts this library and the floor.
pub(super) fn measure(run: &Run, results: &mut Results) {
    run.begin("wires: instructions", WIRES.len() * 2);
    for wire in WIRES {
        for (name, serves) in
            [(subjects::FLOOR.name, Serves::Raw), (subjects::rescind::COMPETITOR.name, Serves::Ours)]
        {
            let each = instructions(wire, serves);
            let figure = each.map_or(NOT_COUNTED, |value| Figure::Number { value, unit: "instructions" });
            results.rows.push(Row::new("wires", wire.name().to_owned(), ONE_CORE, MEASURE, name, figure));
            run.step();
        }
    }
}

/// Instructions of one echo. `None`: they are not counted.
fn instructions(wire: Wire, serves: Serves) -> Option<f64> {
    let least = |echoes| (0..TIMES).map(|_| collected(wire, serves, echoes)).min().flatten();
    Some(least(FEW + COUNTED)?.saturating_sub(least(FEW)?) as f64 / COUNTED as f64)
}

fn collected(wire: Wire, serves: Serves, echoes: usize) -> Option<u64> {
    Place::Pipes.run(async move {
        let mut far = Far::start_counted(wire, serves).await?;
        if serves == Serves::Raw {
            let frame = raw::frame(wire, 64);
            let mut client = RawClient::open(wire, &mut far).await;
            for _ in 0..echoes {
                client.echo(&frame).await;
            }
        } else {
            let params = wire.params(64);
            let mut client = OurClient::open(wire, &mut far).await;
            for _ in 0..echoes {
                client.echo(&params).await;
            }
        }
        far.collected().await
    })
}
