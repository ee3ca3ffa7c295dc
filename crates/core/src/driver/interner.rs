//! The names of the methods that this side calls. Each name is kept once, so that calls in flight share it.

use std::collections::HashMap;
use std::sync::Arc;

/// The most names that are kept. A program that generates names has no use for them.
const MAX_NAMES: usize = 256;
/// The most bytes of a name that is kept.
const MAX_NAME_BYTES: usize = 256;

#[derive(Default)]
pub(crate) struct Interner(HashMap<Arc<str>, MethodIndex>);

/// A kept name. The last one that is kept has the index of a name that is not kept, so that an index is one byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MethodIndex(u8);

impl MethodIndex {
    const NONE: Self = Self(u8::MAX);
}

impl Interner {
    /// The kept name that is equal to this one, or this one.
    pub(crate) fn share(&mut self, name: Arc<str>) -> (Arc<str>, MethodIndex) {
        if let Some((known, index)) = self.0.get_key_value(&name) {
            return (Arc::clone(known), *index);
        }
        let mut index = MethodIndex::NONE;
        if self.0.len() < MAX_NAMES && name.len() <= MAX_NAME_BYTES {
            index = u8::try_from(self.0.len()).map_or(MethodIndex::NONE, MethodIndex);
            self.0.insert(Arc::clone(&name), index);
        }
        (name, index)
    }

    /// The kept name of this index. It looks at all names: only views of a connection ask it.
    pub(crate) fn at(&self, index: MethodIndex) -> Option<Arc<str>> {
        let mut kept = self.0.iter().filter(|(_, known)| **known == index && index != MethodIndex::NONE);
        kept.next().map(|(name, _)| Arc::clone(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_interned_once_and_the_interner_is_bounded() {
        let mut methods = Interner::default();
        let (first, index) = methods.share(Arc::from("work"));
        assert!(Arc::ptr_eq(&first, &methods.share(Arc::from("work")).0));
        for made_up in 0..10_000 {
            methods.share(Arc::from(format!("made/up/{made_up}")));
        }
        methods.share(Arc::from("x".repeat(MAX_NAME_BYTES + 1)));
        assert_eq!(methods.0.len(), MAX_NAMES, "I11: names are not bounded");
        assert!(Arc::ptr_eq(&first, &methods.share(Arc::from("work")).0));
        assert_eq!(methods.at(index), Some(first), "a name is found by its index");
        let (_, second) = methods.share(Arc::from("made/up/0"));
        assert_eq!(methods.at(second).as_deref(), Some("made/up/0"));
        for unkept in ["made/up/254", "made/up/9999"] {
            let (_, index) = methods.share(Arc::from(unkept));
            assert_eq!((index, methods.at(index)), (MethodIndex::NONE, None), "{unkept}");
        }
    }
}
