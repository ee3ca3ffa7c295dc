//! Echoes between two processes, of this library and of the floor in turns.

use super::{Far, OurClient, Serves, Wire};
use crate::raw::{self, RawClient};
use crate::wires::{one_thread, pinned};

/// Echoes of one subject before the other has its turn.
const TURN: usize = 25;
/// The number of measured cancels if each resets a stream. After 200 at once a client delays further resets, so that
/// its server does not end the connection.
pub const RESETS: usize = 150;
/// Rounds that warm up and do not count.
pub const WARM: usize = 2;

/// Runs the measurement in a task on one pinned thread, because waking something outside the tasks makes the runtime
/// look for events once more.
pub fn in_a_task<T: Send + 'static>(measure: impl Future<Output = T> + Send + 'static) -> T {
    pinned(|| one_thread().block_on(async { tokio::spawn(measure).await.expect("it does not panic") }))
}

/// Medians, in microseconds.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// Through `Peer`.
    pub ours: f64,
    /// The same transport without this library.
    pub floor: f64,
    /// The median of the rounds' differences, which a change of the machine's load hardly affects.
    pub over: f64,
    /// The time from a cancel to its handler's signal.
    pub cancel: Option<f64>,
}

/// Echoes of this library and of the floor in turns, with this many cancels of this library in each round.
///
/// # Panics
/// If the connection does not open.
pub async fn measure(wire: Wire, rounds: usize, cancels: usize) -> Times {
    let mut far = Far::start(wire, Serves::Ours).await;
    let mut raw_far = Far::start(wire, Serves::Raw).await;
    let mut ours = OurClient::open(wire, &mut far).await;
    let mut floor = RawClient::open(wire, &mut raw_far).await;
    let (params, frame) = (wire.params(64), raw::frame(wire, 64));
    let mut samples: [Vec<f64>; 4] = Default::default();
    let mut cancels_left = if wire == Wire::Stateless2 { RESETS } else { usize::MAX };
    for round in 0..rounds + WARM {
        let [mut echoes, mut floors, mut took]: [Vec<f64>; 3] = Default::default();
        // In the order A B B A, and reversed in the next round.
        for half in 0..2 {
            for first in [round % 2 == half, round % 2 != half] {
                for _ in 0..TURN {
                    if first {
                        echoes.push(micros(ours.echo(&params).await));
                    } else {
                        floors.push(micros(floor.echo(&frame).await));
                    }
                }
            }
        }
        for _ in 0..cancels.min(cancels_left) {
            cancels_left -= 1;
            took.push(micros(ours.cancel(&mut far, 0).await));
        }
        if round >= WARM {
            let (ours, floor) = (median(&mut echoes), median(&mut floors));
            for (samples, value) in samples.iter_mut().zip([ours, floor, ours - floor]) {
                samples.push(value);
            }
            samples[3].append(&mut took);
        }
    }
    let [ours, floor, over, cancel] =
        samples.map(|mut samples| (!samples.is_empty()).then(|| median(&mut samples)));
    let [ours, floor, over] = [ours, floor, over].map(|median| median.expect("there are rounds"));
    Times { ours, floor, over, cancel }
}

/// The time in microseconds.
#[must_use]
pub fn micros(nanos: u64) -> f64 {
    nanos as f64 / 1000.0
}

/// The median.
#[must_use]
pub fn median(samples: &mut [f64]) -> f64 {
    samples.sort_unstable_by(f64::total_cmp);
    samples[samples.len() / 2]
}
