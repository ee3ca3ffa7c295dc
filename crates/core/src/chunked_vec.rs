//! A list that grows by one page at a time. A full page does not move, and at most one page has unused room.

/// The number of places in a page.
const CHUNK_LEN: usize = 64;

#[derive(Clone, Debug)]
pub(crate) struct ChunkedVec<T> {
    pages: Vec<Vec<T>>,
}

impl<T> ChunkedVec<T> {
    pub(crate) const fn new() -> Self {
        Self { pages: Vec::new() }
    }

    pub(crate) fn len(&self) -> usize {
        self.pages.last().map_or(0, |last| (self.pages.len() - 1) * CHUNK_LEN + last.len())
    }

    pub(crate) fn get(&self, index: usize) -> Option<&T> {
        self.pages.get(index / CHUNK_LEN)?.get(index % CHUNK_LEN)
    }

    pub(crate) fn get_mut(&mut self, index: usize) -> Option<&mut T> {
        self.pages.get_mut(index / CHUNK_LEN)?.get_mut(index % CHUNK_LEN)
    }

    pub(crate) fn push(&mut self, value: T) {
        match self.pages.last_mut() {
            Some(last) if last.len() < CHUNK_LEN => last.push(value),
            Some(_) => {
                let mut page = Vec::with_capacity(CHUNK_LEN);
                page.push(value);
                self.pages.push(page);
            }
            // The first page grows by doubling: most connections have only a few requests at once.
            None => self.pages.push(vec![value]),
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.pages.iter().flatten()
    }

    #[cfg(feature = "tokio")]
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.pages.iter_mut().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_keep_their_order_across_chunks() {
        let mut pages = ChunkedVec::new();
        assert_eq!((pages.len(), pages.get(0)), (0, None));
        (0..=CHUNK_LEN * 2).for_each(|value| pages.push(value));
        assert_eq!(pages.len(), CHUNK_LEN * 2 + 1);
        assert!((0..pages.len()).all(|index| pages.get(index) == Some(&index)));
        assert_eq!(pages.get_mut(pages.len()), None);
        assert!(pages.iter().copied().eq(0..=CHUNK_LEN * 2));
    }
}
