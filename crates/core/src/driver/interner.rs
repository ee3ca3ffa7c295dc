//! The names of the methods that this side calls. Each name is kept once, so that calls in flight share it.

use std::collections::HashSet;
use std::sync::Arc;

/// The most names that are kept. A program that generates names has no use for them.
const MAX_NAMES: usize = 256;
/// The most bytes of a name that is kept.
const MAX_NAME_BYTES: usize = 256;

#[derive(Default)]
pub(crate) struct Interner(HashSet<Arc<str>>);

impl Interner {
    /// The kept name that is equal to this one, or this one.
    pub(crate) fn share(&mut self, name: Arc<str>) -> Arc<str> {
        if let Some(known) = self.0.get(&name) {
            return Arc::clone(known);
        }
        if self.0.len() < MAX_NAMES && name.len() <= MAX_NAME_BYTES {
            self.0.insert(Arc::clone(&name));
        }
        name
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_interned_once_and_the_interner_is_bounded() {
        let mut methods = Interner::default();
        let first = methods.share(Arc::from("work"));
        assert!(Arc::ptr_eq(&first, &methods.share(Arc::from("work"))));
        for made_up in 0..10_000 {
            methods.share(Arc::from(format!("made/up/{made_up}")));
        }
        methods.share(Arc::from("x".repeat(MAX_NAME_BYTES + 1)));
        assert_eq!(methods.0.len(), MAX_NAMES, "I11: names are not bounded");
        assert!(Arc::ptr_eq(&first, &methods.share(Arc::from("work"))));
    }
}
