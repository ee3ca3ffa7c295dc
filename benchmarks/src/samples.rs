//! Samples of the two subjects, taken in turns.

use crate::wires::Pair;
use crate::{Client, params};

/// The medians of the two subjects, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub struct Compared {
    /// Through `Peer`.
    pub ours: f64,
    /// Without.
    pub floor: f64,
}

/// So many samples are taken of one subject before it is the other's turn.
const TURN: usize = 50;

/// Round trips with params of so many bytes, one in flight.
pub async fn echo(pair: &mut Pair, bytes: usize, turns: usize) -> Compared {
    let params = params(bytes);
    let (mut ours, mut floor) = (Vec::new(), Vec::new());
    for turn in 0..turns + 2 {
        for first in [turn % 2 == 0, turn % 2 != 0] {
            let (client, samples): (&mut Client, _) =
                if first { (&mut pair.ours, &mut ours) } else { (&mut pair.floor, &mut floor) };
            for _ in 0..TURN {
                let took = client.echo(&params).await;
                if turn >= 2 {
                    samples.push(took);
                }
            }
        }
    }
    Compared { ours: median(&mut ours), floor: median(&mut floor) }
}

/// Cancels, one at a time: to the handler's signal, and to the caller's return.
pub async fn cancel(pair: &mut Pair, turns: usize) -> (Compared, Compared) {
    let mut samples: [[Vec<u64>; 2]; 2] = Default::default();
    for turn in 0..turns + 2 {
        for place in [turn % 2, (turn + 1) % 2] {
            let client = if place == 0 { &mut pair.ours } else { &mut pair.floor };
            for _ in 0..TURN {
                let took = client.cancel().await;
                if turn >= 2 {
                    samples[0][place].push(took.to_handler);
                    samples[1][place].push(took.to_caller);
                }
            }
        }
    }
    let [to_handler, to_caller] =
        samples.map(|[mut ours, mut floor]| Compared { ours: median(&mut ours), floor: median(&mut floor) });
    (to_handler, to_caller)
}

fn median(samples: &mut [u64]) -> f64 {
    samples.sort_unstable();
    samples[samples.len() / 2] as f64
}
