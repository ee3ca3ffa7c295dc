//! Both ends in this process, in memory.

use rescind_core::{BoxFuture, Link, memory_pair};

use super::{Reached, Wire};
use crate::runner::LinkSubject;
use crate::vector::Scenario;

pub(super) struct Memory;

impl Wire for Memory {
    fn fixture<'a>(&'a self, scenario: &'a Scenario) -> BoxFuture<'a, Result<Reached, String>> {
        Box::pin(async move {
            let fixture = super::fixture(scenario)?;
            let connect = move || -> BoxFuture<'static, Result<Link, String>> {
                let fixture = fixture.clone();
                Box::pin(async move {
                    let (ours, theirs) = memory_pair();
                    fixture.serve(theirs).map(|_peer| ours).map_err(|error| error.to_string())
                })
            };
            let subject =
                LinkSubject::new(Box::new(connect)).with_many_lines().with_half_close().with_options();
            Ok(Reached { subject, end: Box::pin(async {}) })
        })
    }

    fn pair<'a>(&'a self, _: &'a Scenario) -> BoxFuture<'a, Result<(Link, Link), String>> {
        Box::pin(async { Ok(memory_pair()) })
    }
}
