//! The program `rescind`, run as its users run it: one binary, because nearly all of these tests wait for processes and for
//! time limits, and so they wait together.

mod bridge;
#[cfg(unix)]
mod common;
mod program {
    //! The subcommands of `rescind`, except `bridge`.
    #![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "what the tests share is part of them")]

    mod check;
    mod check_facts;
    mod cli;
    mod endpoints;
    mod fixture;
    mod init;
}
