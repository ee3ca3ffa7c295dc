//! A call whose builder is awaited.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use serde::de::DeserializeOwned;

use crate::driver::call::Call;
use crate::error::CallError;

/// A call that was started by awaiting its builder. Dropping it cancels the call.
#[must_use = "futures do nothing unless they are polled"]
pub struct Starting<R>(Result<Call<R>, Option<CallError>>);

impl<R> Starting<R> {
    pub(crate) fn new(started: Result<Call<R>, CallError>) -> Self {
        Self(started.map_err(Some))
    }
}

impl<R: DeserializeOwned> Future for Starting<R> {
    type Output = Result<R, CallError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.0 {
            Ok(call) => Pin::new(call).poll(cx),
            Err(error) => Poll::Ready(Err(error.take().unwrap_or(CallError::Ended))),
        }
    }
}

impl<R> fmt::Debug for Starting<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Starting").field(&self.0).finish()
    }
}
