//! The limits of the budgets, for all programs that judge. They are the design's table of budgets.

/// W1, 64 B in memory on one thread: microseconds over the floor.
pub const ECHO_IN_MEMORY: f64 = 1.5;
/// W1, 64 B in memory on one thread: microseconds over the floor that the first round hoped for, and did not ask for.
pub const ECHO_DREAM: f64 = 0.7;
/// W2 with quick handlers, 64 in flight in memory on one thread: microseconds of a request, which are 400,000 a second.
pub const QUICK_REQUEST: f64 = 2.5;
/// The same: multiple of the best of the others. Meeting one of the two is enough.
pub const QUICK_OF_OTHERS: f64 = 0.5;
/// W1, 64 B over pipes, a named pipe or a WebSocket: microseconds over the floor.
pub const ECHO_BETWEEN_PROCESSES: f64 = 4.0;
/// W1, 64 B over HTTP: microseconds over the floor.
pub const ECHO_OVER_HTTP: f64 = 10.0;
/// W1, 64 B over HTTP/1.1, the second round's limit: microseconds over the floor.
pub const ECHO_OVER_HTTP1: f64 = 20.0;
/// W1, 64 B over HTTP/2 and `acp`, the second round's limit: microseconds over the floor.
pub const ECHO_OVER_HTTP2: f64 = 30.0;
/// Instructions of the server's side of an echo over `streamable` in HTTP/1.1.
pub const SERVER_OF_STREAMABLE: f64 = 36_000.0;
/// The same over `stateless`.
pub const SERVER_OF_STATELESS: f64 = 45_000.0;
/// The same over HTTP/2.
pub const SERVER_OVER_HTTP2: f64 = 65_000.0;
/// Between processes, on the transports that the other libraries have too: multiple of the best of the others.
pub const BEST_ON_WIRES: f64 = 0.5;
/// An idle session over a named pipe: KiB of the server's memory.
pub const IDLE_NAMED_PIPE: f64 = 10.0;
/// The same over a WebSocket.
pub const IDLE_WEBSOCKET: f64 = 20.0;
/// The same over HTTP.
pub const IDLE_HTTP: f64 = 24.0;
/// W1, 64 KiB: multiple of the floor.
pub const ECHO_64_KIB: f64 = 1.2;
/// W1 and W2 in memory, and W8: multiple of the best of the others.
pub const BEST_OF_OTHERS: f64 = 1.0;
/// W1 in memory, the third round's limit: multiple of the best of the others with their own client.
pub const ECHO_OF_OTHERS: f64 = 0.8;
/// W1 in memory on one thread with quick handlers, the third round's limit: the same multiple.
pub const QUICK_ECHO_OF_OTHERS: f64 = 0.7;
/// The same: multiple of the floor.
pub const QUICK_ECHO_IN_FLOORS: f64 = 2.8;
/// W2 in memory on one thread, the third round's limit: multiple of the time of the best of the others, which is 1.5 times as many
/// requests.
pub const FLIGHT_OF_OTHERS: f64 = 0.667;
/// W2 in memory with two workers, the third round's limit: twice as many requests.
pub const FLIGHT_OF_OTHERS_ON_TWO: f64 = 0.5;
/// W1 and W2 in memory, the server alone under a raw client: multiple of the best of the others' servers.
pub const SERVER_OF_OTHERS: f64 = 1.0;
/// The same, as the first round hoped for and did not ask for.
pub const BEST_OF_OTHERS_DREAM: f64 = 0.5;
/// W1 and W2 in memory: multiple of rmcp and of agent-client-protocol.
pub const SLOW_OTHERS: f64 = 0.2;
/// W3 to the handler's signal on one thread, or between two processes on one core: microseconds over one direction of the
/// transport.
pub const SIGNAL_ON_ONE_THREAD: f64 = 1.0;
/// W3 to the handler's signal on two threads: microseconds over one direction of the transport.
pub const SIGNAL_ON_TWO_THREADS: f64 = 5.0;
/// W3 to the caller's return: multiple of this library's echo.
pub const CALLER_RETURN: f64 = 1.2;
/// W4: multiple of the same cancel with free slots.
pub const SATURATED: f64 = 2.0;
/// W5: percent more instructions.
pub const BYSTANDER: f64 = 3.0;
/// W6: nanoseconds of an unknown cancel.
pub const UNKNOWN_CANCEL: f64 = 250.0;
/// W6: KiB of growth.
pub const UNKNOWN_CANCELS_GROWTH: f64 = 1024.0;
/// W7, W8 and scale: the exponent that still counts as linear.
pub const LINEAR: f64 = 1.1;
/// W7: milliseconds of other requests.
pub const OTHERS_MEANWHILE: f64 = 1.0;
/// W7, a tree, to the last handler: multiple of the best of the others that have it.
pub const TREE_OF_OTHERS: f64 = 1.5;
/// W9: milliseconds by which a caller returns after its deadline.
pub const LATE: f64 = 25.0;
/// W10: multiple of the floor that reads both envelopes.
pub const LARGE: f64 = 1.3;
/// W10: the most memory of a side, in frames.
pub const FRAMES_A_SIDE: f64 = 2.0;
/// W11 over a WebSocket, 10,000 sessions: milliseconds of the 99th percentile of an echo.
pub const HELD_WEBSOCKET: f64 = 3.0;
/// W11 over `streamable` in HTTP/1.1, 5,000 sessions: the same.
pub const HELD_HTTP1: f64 = 3.0;
/// W11 over `streamable` in HTTP/2, 10,000 sessions: the same.
pub const HELD_HTTP2: f64 = 6.0;
/// W11: echoes and cancels that were lost.
pub const HELD_LOST: f64 = 0.0;
/// The newcomer's clock: seconds of README's first command from a clean clone, with its build.
pub const CLOCK_MATRIX: f64 = 180.0;
/// The same of `cargo test --workspace`.
pub const CLOCK_TEST: f64 = 480.0;
/// W8: bytes of a request in flight, both sides, with the user's future and the runtime's task.
pub const IN_FLIGHT_IN_ALL: f64 = 560.0;
/// W8: bytes of a request in flight.
pub const IN_FLIGHT: f64 = 256.0;
/// Microseconds of a step of the machine.
pub const STEP: f64 = 0.5;
/// Allocations of a step of the machine.
pub const STEP_ALLOCATIONS: f64 = 2.0;
