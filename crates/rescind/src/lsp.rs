//! The methods of the Language Server Protocol, with the types of the crate `gen-lsp-types`.

use std::marker::PhantomData;

use rescind_core::Method;

pub use gen_lsp_types as types;

/// The method of a request type of [`types`]: its name, params and result.
///
/// ```no_run
/// use rescind::lsp::{Lsp, types};
/// use rescind::{CallContext, HandlerResult, Peer, Router, dialect, stdio};
///
/// async fn hover(ctx: CallContext, params: types::HoverParams) -> HandlerResult<Option<types::Hover>> {
///     ctx.run_until_cancelled(find(params)).await?
/// }
///
/// async fn find(_params: types::HoverParams) -> HandlerResult<Option<types::Hover>> {
///     Ok(None)
/// }
///
/// # async fn serve() -> Result<(), rescind::ConnectionError> {
/// let router = Router::new().serve::<Lsp<types::HoverRequest>>(hover);
/// let peer = Peer::builder(dialect::LSP).serve(router).connect(stdio::this_process()).await?;
/// # peer.closed().await
/// # }
/// ```
#[derive(Debug)]
pub struct Lsp<R>(PhantomData<R>);

impl<R: types::Request + 'static> Method for Lsp<R> {
    const NAME: &'static str = R::METHOD.as_str();
    type Params = R::Params;
    type Answer = R::Result;
}
