//! Limits how often a client resets HTTP/2 streams. Servers close connections that reset many streams.

use std::time::Duration;

use tokio::time::Instant;

/// A token bucket. It is full at first, and one token after another comes back.
#[derive(Debug)]
pub(crate) struct Resets {
    /// The time in which the empty bucket becomes full.
    whole: Duration,
    /// The time in which one token comes back.
    every: Duration,
    full_at: Instant,
}

impl Resets {
    /// Allows `burst` resets at once, and then one in each interval `every`.
    pub(crate) fn new(burst: u32, every: Duration) -> Self {
        Self { whole: every * burst, every, full_at: Instant::now() }
    }

    /// Takes a token, or returns the time until there is one.
    pub(crate) fn take(&mut self) -> Result<(), Duration> {
        let now = Instant::now();
        let full_at = self.full_at.max(now) + self.every;
        if let Some(wait) = (full_at - now).checked_sub(self.whole).filter(|wait| !wait.is_zero()) {
            return Err(wait);
        }
        self.full_at = full_at;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_bucket_that_is_empty_fills_again() {
        let every = Duration::from_millis(100);
        let mut resets = Resets::new(3, every);
        for _ in 0..3 {
            assert_eq!(resets.take(), Ok(()));
        }
        assert_eq!(resets.take(), Err(every));
        tokio::time::advance(every / 2).await;
        assert_eq!(resets.take(), Err(every / 2));
        tokio::time::advance(every / 2).await;
        assert_eq!((resets.take(), resets.take()), (Ok(()), Err(every)));
        tokio::time::advance(every * 100).await;
        let taken = std::iter::repeat_with(|| resets.take()).take_while(Result::is_ok).count();
        assert_eq!(taken, 3, "it holds no more than at first");
    }
}
