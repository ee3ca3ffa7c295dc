//! Boxes that are used again, so that a step of the machine does not wait for the allocator.

/// The most boxes that are kept.
const MAX_POOLED: usize = 64;

#[derive(Debug)]
#[cfg_attr(feature = "verify", derive(Clone))]
pub(crate) struct Pool<T>(Vec<Box<T>>);

impl<T: Default> Pool<T> {
    pub(crate) const fn new() -> Self {
        Self(Vec::new())
    }

    /// A box with the default value.
    #[expect(clippy::unnecessary_box_returns, reason = "the box is what is wanted")]
    pub(crate) fn take(&mut self) -> Box<T> {
        self.0.pop().unwrap_or_default()
    }

    /// Resets a box that is not used any more, and keeps it.
    pub(crate) fn keep(&mut self, used: Option<Box<T>>) {
        if let Some(mut used) = used.filter(|_| self.0.len() < MAX_POOLED) {
            *used = T::default();
            self.0.push(used);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pooled_box_is_reused_empty_and_the_pool_is_bounded() {
        let mut spares = Pool::new();
        for value in 0..MAX_POOLED * 2 {
            spares.keep(Some(Box::new(value)));
        }
        assert_eq!(spares.0.len(), MAX_POOLED);
        assert_eq!(*spares.take(), 0);
    }
}
