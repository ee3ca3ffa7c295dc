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
mod rmcp;
mod tarpc;
mod tower_lsp;

use crate::cross_process::Wire;
use crate::subject::Competitor;
use crate::wire_subjects::{Kind, WireSubject};

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

/// Their servers alone, under a client that writes frames by hand. tower-lsp-server, which has no client, is such a one already.
#[must_use]
pub fn servers() -> Vec<Competitor> {
    vec![async_lsp::SERVER]
}

/// Those on transports between two processes, each on the transports that its users would choose.
#[must_use]
pub fn on_wires() -> Vec<WireSubject> {
    let of_pipes = [
        async_lsp::DEFAULT,
        async_lsp::BEST,
        tower_lsp::DEFAULT,
        tower_lsp::BEST,
        rmcp::DEFAULT,
        acp::DEFAULT,
    ];
    let of_pipes = of_pipes.into_iter().map(|one| WireSubject {
        name: one.name,
        wires: &[Wire::Stdio],
        kind: Kind::Pipes(one),
    });
    let others = [
        jsonrpsee::WEBSOCKET,
        jsonrpsee::WEBSOCKET_BEST,
        rmcp::HTTP_DEFAULT,
        rmcp::HTTP_BEST,
        rmcp::HTTP_STATELESS,
        jsonrpsee::HTTP,
        acp::WEBSOCKET,
        acp::WEBSOCKET_BEST,
        acp::HTTP,
        acp::HTTP_BEST,
        acp::HTTP2,
    ];
    of_pipes.chain(others).collect()
}
