//! Both ends in this process, in memory.

use rescind_core::{BoxFuture, Link, memory_pair};

use super::{Served, Wire};
use crate::vector::Scenario;

pub(super) struct Memory;

impl Wire for Memory {
    fn fixture<'a>(&'a self, scenario: &'a Scenario) -> BoxFuture<'a, Result<Served, String>> {
        Box::pin(async move {
            let fixture = super::fixture(scenario)?;
            let connect = move || -> BoxFuture<'static, Result<Link, String>> {
                let fixture = fixture.clone();
                Box::pin(async move {
                    let (ours, theirs) = memory_pair();
                    fixture.serve(theirs).map(|_peer| ours).map_err(|error| error.to_string())
                })
            };
            Ok(Served {
                connect: Box::new(connect),
                many_lines: true,
                half_close: true,
                exit_report: None,
                end: Box::pin(async {}),
            })
        })
    }

    fn pair<'a>(&'a self, _: &'a Scenario) -> BoxFuture<'a, Result<(Link, Link), String>> {
        Box::pin(async { Ok(memory_pair()) })
    }
}
