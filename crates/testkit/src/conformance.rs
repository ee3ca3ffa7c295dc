//! The contract of a transport, as tests for any transport: [`conformance!`](crate::conformance!) runs them all.
//!
//! No test waits for time to pass. A wait that takes longer than [`HANG`] counts as a hang.

#![expect(clippy::expect_used, reason = "these are tests: a broken contract is a panic")]

mod bytes_in;
mod ends;
mod harness;
mod lanes;
mod polls;

pub use crate::support::HANG;
pub use bytes_in::{
    bad_utf8_then_a_valid_frame, end_of_input_inside_a_frame, one_byte_at_a_time, oversize_then_a_valid_frame,
};
pub use ends::{
    a_closed_link_sends_nothing_more, a_closed_side_still_reads, a_peer_that_is_gone_hangs_nobody,
};
pub use harness::{Harness, RawBytes};
pub use lanes::{a_cancel_overtakes_four_thousand_queued_frames, a_request_taken_back_never_appears};
pub use polls::{a_slow_reader_loses_nothing, dropped_polls_lose_nothing, frames_arrive_whole_and_in_order};

/// Makes a `#[tokio::test]` for each rule of the contract, for the transport that a [`Harness`] connects.
///
/// A rule that a transport cannot meet is left out by its name, with a reason: the macro makes no test of it, and the
/// reason is in the source. Put the macro into a separate module. The crate that uses it needs tokio with `macros`
/// and `rt`.
///
/// ```
/// use rescind_core::{Link, memory_pair};
///
/// #[derive(Debug)]
/// struct Memory;
///
/// impl rescind_testkit::conformance::Harness for Memory {
///     async fn connect(&self) -> (Link, Link) {
///         memory_pair()
///     }
/// }
///
/// mod memory {
///     rescind_testkit::conformance!(super::Memory, without {
///         one_byte_at_a_time: "frames are handed over, there are no bytes",
///         end_of_input_inside_a_frame: "frames are handed over, there are no bytes",
///         oversize_then_a_valid_frame: "frames are handed over, there are no bytes",
///         bad_utf8_then_a_valid_frame: "frames are handed over, there are no bytes",
///     });
/// }
/// ```
#[macro_export]
macro_rules! conformance {
    ($harness:expr $(,)?) => {
        $crate::conformance!($harness, without {});
    };
    ($harness:expr, without { $($rule:ident: $why:literal),* $(,)? }) => {
        // A name that is not a rule does not compile.
        $(
            #[expect(unused_imports, reason = "only that there is such a rule")]
            use $crate::conformance::$rule as _;
        )*
        macro_rules! rule {
            $(
                ($rule) => {};
            )*
            ($other:ident) => {
                #[::tokio::test]
                async fn $other() {
                    $crate::conformance::$other(&$harness).await;
                }
            };
        }
        rule!(one_byte_at_a_time);
        rule!(end_of_input_inside_a_frame);
        rule!(oversize_then_a_valid_frame);
        rule!(bad_utf8_then_a_valid_frame);
        rule!(frames_arrive_whole_and_in_order);
        rule!(dropped_polls_lose_nothing);
        rule!(a_slow_reader_loses_nothing);
        rule!(a_cancel_overtakes_four_thousand_queued_frames);
        rule!(a_request_taken_back_never_appears);
        rule!(a_peer_that_is_gone_hangs_nobody);
        rule!(a_closed_side_still_reads);
        rule!(a_closed_link_sends_nothing_more);
    };
}
