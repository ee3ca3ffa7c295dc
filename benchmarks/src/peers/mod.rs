//! The other libraries, each used in the best way that its own docs show.
//!
//! An adapter (a file of this folder named after its library) defines how one library is connected, echoes, waits and
//! cancels. The common operations are in [`driven`](crate::driven). If a library's defaults are not its best, it has
//! two configurations, and names the docs or example that each follows. None of them logs: there is no subscriber.

/// A competitor that works over any stream.
macro_rules! halves {
    ($name:expr, $halves:expr) => {
        Competitor {
            name: $name,
            open: |setup| Box::pin(crate::generic_driver::open($halves, setup)),
            serve: Some(|setup| Box::pin(crate::generic_driver::serve($halves, setup))),
        }
    };
}

mod acp;
mod async_lsp;
mod jsonrpsee;
mod raw_client;
mod rmcp;
mod tarpc;
mod tower_lsp;

use crate::subject::Competitor;

/// All of them.
#[must_use]
pub fn all() -> Vec<Competitor> {
    vec![
        async_lsp::DEFAULT,
        async_lsp::BEST,
        tower_lsp::DEFAULT,
        tower_lsp::BEST,
        tarpc::DEFAULT,
        tarpc::BEST,
        tarpc::FRAMES,
        rmcp::DEFAULT,
        acp::DEFAULT,
        acp::BEST,
        acp::INLINE,
        jsonrpsee::DEFAULT,
        jsonrpsee::BEST,
    ]
}
