//! What the driver logs. Each of these tests has a subscriber, and no other test runs beside them: one without a subscriber
//! could switch an event off for all.

mod driver_log;
mod driver_log_lines;
mod driver_tracing;
