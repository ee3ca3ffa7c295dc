//! How long calls of this side may take.

use std::time::{Duration, Instant};

use crate::dialect::{Role, Rules};

/// The settings of the connection, for calls without settings of their own.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timeouts {
    pub(crate) call: Setting,
    pub(crate) max: Setting,
}

/// A time that may be left to the default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Setting {
    #[default]
    Default,
    Never,
    After(Duration),
}

impl Setting {
    pub(crate) fn of(time: Option<Duration>) -> Self {
        time.map_or(Self::Never, Self::After)
    }

    pub(crate) fn or(self, default: Option<Duration>) -> Option<Duration> {
        match self {
            Self::Default => default,
            Self::Never => None,
            Self::After(time) => Some(time),
        }
    }
}

/// The settings of a call.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CallTime {
    pub(crate) timeout: Setting,
    pub(crate) max: Setting,
    /// Whether progress restarts the timeout.
    pub(crate) is_renewed: bool,
}

/// The times of a call that starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CallTimes {
    pub(crate) timeout: Option<Duration>,
    pub(crate) deadline: Option<Instant>,
    pub(crate) renewal: Option<Renewal>,
}

/// How progress changes the deadline of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Renewal {
    by: Duration,
    until: Option<Instant>,
}

impl Renewal {
    /// The deadline after progress that arrives now.
    pub(crate) fn deadline(self, now: Instant) -> Option<Instant> {
        now.checked_add(self.by).into_iter().chain(self.until).min()
    }
}

impl CallTime {
    /// The defaults of the dialect apply to clients only, and not to requests that are meant to stay open.
    pub(crate) fn begin(
        self,
        now: Instant,
        connection: Timeouts,
        rules: &Rules,
        role: Role,
        method: &str,
    ) -> CallTimes {
        let stays_open = rules.peer_may_end.contains(&method);
        let of_client = |time: Option<Duration>| time.filter(|_| role == Role::Client);
        let by_default = connection.call.or(of_client(rules.call_timeout)).filter(|_| !stays_open);
        let timeout = self.timeout.or(by_default);
        // A default maximum never shortens a timeout that the caller set.
        let max_by_default = connection.max.or(of_client(rules.max_call_timeout)).filter(|_| self.is_renewed);
        let max = self.max.or(max_by_default.map(|max| timeout.map_or(max, |timeout| max.max(timeout))));
        let until = max.and_then(|max| now.checked_add(max));
        let renewal = timeout.filter(|_| self.is_renewed).map(|by| Renewal { by, until });
        let timeout = timeout.into_iter().chain(max).min();
        CallTimes { timeout, deadline: timeout.and_then(|timeout| now.checked_add(timeout)), renewal }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dialect::{ACP, MCP, MCP_2026};

    const SECOND: Duration = Duration::from_secs(1);
    const UNSET: Timeouts = Timeouts { call: Setting::Default, max: Setting::Default };

    fn timeout(
        call: CallTime,
        connection: Timeouts,
        rules: &Rules,
        role: Role,
        method: &str,
    ) -> Option<Duration> {
        call.begin(Instant::now(), connection, rules, role, method).timeout
    }

    #[test]
    fn only_clients_of_mcp_have_a_timeout_by_default() {
        let call = CallTime::default();
        assert_eq!(timeout(call, UNSET, MCP.rules(), Role::Client, "tools/call"), Some(60 * SECOND));
        assert_eq!(timeout(call, UNSET, MCP.rules(), Role::Server, "elicitation/create"), None);
        assert_eq!(timeout(call, UNSET, MCP_2026.rules(), Role::Client, "subscriptions/listen"), None);
        assert_eq!(timeout(call, UNSET, ACP.rules(), Role::Client, "session/prompt"), None);
        let never = Timeouts { call: Setting::Never, ..UNSET };
        assert_eq!(timeout(call, never, MCP.rules(), Role::Client, "tools/call"), None);
        let short = Timeouts { call: Setting::After(SECOND), ..UNSET };
        assert_eq!(timeout(call, short, ACP.rules(), Role::Server, "a"), Some(SECOND));
        let own = CallTime { timeout: Setting::Never, ..call };
        assert_eq!(timeout(own, short, ACP.rules(), Role::Server, "a"), None);
    }

    #[test]
    fn a_default_maximum_does_not_shorten_an_explicit_timeout() {
        let now = Instant::now();
        let long =
            CallTime { timeout: Setting::After(3600 * SECOND), is_renewed: true, ..CallTime::default() };
        let given = long.begin(now, UNSET, MCP.rules(), Role::Client, "a");
        assert_eq!(given.timeout, Some(3600 * SECOND));
        assert_eq!(given.renewal.and_then(|renewal| renewal.until), now.checked_add(3600 * SECOND));
        let capped = CallTime { max: Setting::After(SECOND), ..long };
        assert_eq!(capped.begin(now, UNSET, MCP.rules(), Role::Client, "a").timeout, Some(SECOND));
    }
}
