//! A list that usually has one element.

/// The first element is in the list itself, so that a single element needs no allocation.
pub(crate) struct InlineVec<T> {
    first: Option<T>,
    rest: Vec<T>,
}

impl<T> Default for InlineVec<T> {
    fn default() -> Self {
        Self { first: None, rest: Vec::new() }
    }
}

impl<T> InlineVec<T> {
    pub(crate) fn push(&mut self, one: T) {
        match self.first {
            None => self.first = Some(one),
            Some(_) => self.rest.push(one),
        }
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.first.is_none()
    }
}

impl<T> Extend<T> for InlineVec<T> {
    fn extend<I: IntoIterator<Item = T>>(&mut self, more: I) {
        more.into_iter().for_each(|one| self.push(one));
    }
}

impl<T> IntoIterator for InlineVec<T> {
    type Item = T;
    type IntoIter = std::iter::Chain<std::option::IntoIter<T>, std::vec::IntoIter<T>>;

    fn into_iter(self) -> Self::IntoIter {
        self.first.into_iter().chain(self.rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_are_returned_in_the_order_they_were_pushed() {
        let mut inline_vec = InlineVec::default();
        assert!(inline_vec.is_empty());
        inline_vec.push(0);
        assert!(!inline_vec.is_empty() && inline_vec.rest.capacity() == 0, "one alone takes memory");
        inline_vec.extend(1..4);
        assert!(inline_vec.into_iter().eq(0..4));
    }
}
