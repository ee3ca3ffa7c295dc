//! The limits of the budgets, for all programs that judge. They are the design's table of budgets.

/// W1, 64 B in memory on one thread: microseconds over the floor.
pub const ECHO_IN_MEMORY: f64 = 1.5;
/// W2 with quick handlers, 64 in flight in memory on one thread: microseconds of a request, which are 400,000 a second.
pub const QUICK_REQUEST: f64 = 2.5;
/// The same: multiple of the best of the others. Meeting one of the two is enough.
pub const QUICK_OF_OTHERS: f64 = 0.5;
/// W1, 64 B over pipes, a named pipe or a WebSocket: microseconds over the floor.
pub const ECHO_BETWEEN_PROCESSES: f64 = 4.0;
/// W1, 64 B over HTTP: microseconds over the floor.
pub const ECHO_OVER_HTTP: f64 = 10.0;
/// W1, 64 KiB: multiple of the floor.
pub const ECHO_64_KIB: f64 = 1.2;
/// W1 and W2 in memory, and W8: multiple of the best of the others.
pub const BEST_OF_OTHERS: f64 = 1.0;
/// W1 and W2 in memory: multiple of rmcp and of agent-client-protocol.
pub const SLOW_OTHERS: f64 = 0.2;
/// W3 to the handler's signal on one thread: microseconds over one direction of the transport.
pub const SIGNAL_ON_ONE_THREAD: f64 = 1.0;
/// W3 to the handler's signal on two threads: microseconds over one direction of the transport.
pub const SIGNAL_ON_TWO_THREADS: f64 = 5.0;
/// From a cancel to its handler's signal in another process: microseconds over one direction of the transport. The
/// table of budgets has no limit for it. The transports were built to this one.
pub const SIGNAL_IN_ANOTHER_PROCESS: f64 = 20.0;
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
/// W8: bytes of a request in flight.
pub const IN_FLIGHT: f64 = 256.0;
/// Microseconds of a step of the machine.
pub const STEP: f64 = 0.5;
/// Allocations of a step of the machine.
pub const STEP_ALLOCATIONS: f64 = 2.0;
