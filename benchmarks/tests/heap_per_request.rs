//! The memory of a request in flight is exact and repeats, so it can be tested, while times cannot.

use rescind_benchmarks::transport_echo;

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
