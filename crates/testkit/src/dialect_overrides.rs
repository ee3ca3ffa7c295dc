//! The changes that a vector's options make to a dialect.

use rescind_core::dialect::{AnswerAfterCancel, CancelFrom, Dialect};

use crate::options::{AnswerAfterCancelOption, CancelFromOption, Options};

impl Options {
    /// Returns the dialect with the rules that these options change, or the same dialect if they change none.
    #[must_use]
    pub fn apply_to(&self, dialect: &Dialect) -> Dialect {
        if self.cancel_from.is_none() && self.answer_after_cancel.is_none() {
            return dialect.clone();
        }
        let mut builder = dialect.to_builder();
        if let Some(from) = self.cancel_from {
            builder = builder.cancel_from(match from {
                CancelFromOption::Both => CancelFrom::Both,
                CancelFromOption::Client => CancelFrom::Client,
            });
        }
        if let Some(answer) = self.answer_after_cancel {
            builder = builder.answer_after_cancel(match answer {
                AnswerAfterCancelOption::Dialect => AnswerAfterCancel::Dialect,
                AnswerAfterCancelOption::ResultIfFinished => AnswerAfterCancel::ResultIfFinished,
            });
        }
        builder.build()
    }
}
