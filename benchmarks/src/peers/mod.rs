//! The other libraries, each driven the best way its own docs show.
//!
//! An adapter (a file of this folder named after its library) says what one library does: how it is connected, echoes, parks
//! and cancels. What is asked of them all stands in [`driven`](crate::driven), once. Where a library's defaults are not its best, it has two
//! configurations, and says which of its docs or examples each follows. Nobody logs: there is no subscriber.

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
