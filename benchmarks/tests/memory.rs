//! The memory that the echo of a large frame takes, and that of a request in flight, is exact and repeats, so it can be
//! tested, while times cannot.

use rescind_benchmarks::cross_process::Wire;
use rescind_benchmarks::resources::{self, one_thread};
use rescind_benchmarks::transport_echo::{self, Carrier, EchoClient, EchoHandler, Echoes};

/// Bytes of the text in the params.
const TEXT: usize = 8 << 20;

/// The most that is left after an echo, in frames: the HTTP library's buffers differ from echo to echo.
const LEFT: f64 = 0.05;

/// The heap of an echo, both sides together, in frames: the most at one time, and what is left.
fn frames(carrier: Carrier) -> (f64, f64) {
    let runtime = one_thread();
    let client =
        runtime.block_on(EchoClient::open(Echoes { carrier, bytes: TEXT, handler: EchoHandler::Task }));
    // The first echo also makes what a connection keeps.
    runtime.block_on(client.echo(1));
    let heap = resources::measure_heap(|| runtime.block_on(client.echo(1))).expect("allocations are counted");
    (heap.most / TEXT as f64, heap.left / TEXT as f64)
}

/// The most frames at one time, both sides together, without the caller's own params. While one side has two, the frame
/// and the value from which or into which it is made, the other side has none, except over HTTP. So no side has more than
/// two and a quarter.
const fn most(carrier: Carrier) -> f64 {
    match carrier {
        // A part of 256 KiB is in addition to the parts of the line.
        Carrier::Frames | Carrier::Lines | Carrier::WebSocket => 2.05,
        // A quarter of a body is copied when memory for all of it is allocated.
        Carrier::ContentLength => 2.3,
        // A client keeps its frame until the response has begun.
        Carrier::Http(Wire::Streamable) => 3.05,
        Carrier::Http(_) => 2.3,
    }
}

#[test]
fn the_echo_of_a_large_frame_takes_at_most_two_frames_a_side_and_leaves_none() {
    let mut told = Vec::new();
    let mut is_over = false;
    for carrier in Carrier::ALL {
        let (peak, left) = frames(carrier);
        is_over |= peak > most(carrier) || left.abs() > LEFT;
        told.push(format!("{}: {peak:.2} of {:.2}, {left:.2} left", carrier.name(), most(carrier)));
    }
    assert!(!is_over, "W10, in frames: {told:#?}");
    println!("{told:#?}");
}

/// Heap bytes on both sides together, without the handler's own task.
const MOST: f64 = 400.0;

#[test]
fn a_request_in_flight_holds_less_than_four_hundred_bytes() {
    for requests in [1_000, 10_000, 100_000] {
        let held = transport_echo::resident(requests);
        assert!(held.task >= held.future, "the task holds its future: {held:?}");
        assert!(held.beside() > 0.0, "both sides keep something: {held:?}");
        assert!(held.beside() <= MOST, "W8: {requests} in flight hold {held:?}");
    }
}
