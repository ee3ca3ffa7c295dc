//! The two sides of a connection.

use std::fmt;

/// One side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Side {
    Client,
    Server,
}

impl Side {
    pub(super) const BOTH: [Self; 2] = [Self::Client, Self::Server];

    pub(super) const fn other(self) -> Self {
        match self {
            Self::Client => Self::Server,
            Self::Server => Self::Client,
        }
    }
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Client => "client",
            Self::Server => "server",
        })
    }
}

/// A value for each side.
#[derive(Clone, Debug, Default)]
pub(super) struct PerSide<T> {
    pub(super) client: T,
    pub(super) server: T,
}

impl<T> PerSide<T> {
    pub(super) fn of(&self, side: Side) -> &T {
        match side {
            Side::Client => &self.client,
            Side::Server => &self.server,
        }
    }

    pub(super) fn of_mut(&mut self, side: Side) -> &mut T {
        match side {
            Side::Client => &mut self.client,
            Side::Server => &mut self.server,
        }
    }
}
