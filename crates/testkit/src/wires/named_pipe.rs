//! A named pipe in this user's directory.

use std::process::id;
use std::sync::atomic::{AtomicU64, Ordering};

use rescind_core::{BoxFuture, Link, Transport};
use rescind_named_pipe::{NamedPipeListener, NamedPipeTransport, PipeAddress};

use super::bridge::Listens;
use super::loopback::Loopback;
use super::{Lack, Served, Wire, framing_of};
use crate::vector::Scenario;

/// Features that no scenario can use on a pipe.
pub(super) const LACKS: &[(Lack, &str)] = if cfg!(windows) {
    &[(Lack::HalfClose, "a Windows pipe closes in both directions at once")]
} else {
    &[]
};

pub(super) struct NamedPipe;

async fn listen(scenario: &Scenario) -> Result<Loopback, String> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let name = format!("rescind-matrix-{}-{}", id(), NEXT.fetch_add(1, Ordering::Relaxed));
    let framing = framing_of(scenario)?;
    let address = PipeAddress::name(&name).map_err(|error| error.to_string())?;
    let listener = NamedPipeListener::bind(&address).await.map_err(|error| error.to_string())?;
    let transport =
        move || -> Box<dyn Transport> { Box::new(NamedPipeTransport::new(address.clone()).framing(framing)) };
    Ok(Loopback {
        listener: Box::pin(listener.framing(framing)),
        transport: Box::new(transport),
        half_close: LACKS.is_empty(),
    })
}

impl Wire for NamedPipe {
    fn fixture<'a>(&'a self, scenario: &'a Scenario) -> BoxFuture<'a, Result<Served, String>> {
        Box::pin(async move { Ok(listen(scenario).await?.serve(super::fixture(scenario)?)) })
    }

    fn pair<'a>(&'a self, scenario: &'a Scenario) -> BoxFuture<'a, Result<(Link, Link), String>> {
        Box::pin(async move { listen(scenario).await?.pair().await })
    }
}

impl Listens for NamedPipe {
    fn listen<'a>(&'a self, scenario: &'a Scenario) -> BoxFuture<'a, Result<Loopback, String>> {
        Box::pin(listen(scenario))
    }
}
