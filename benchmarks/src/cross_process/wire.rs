//! The transports: their names, their dialects, their params and their limits.

use rescind_core::dialect::{ACP, Dialect, MCP, MCP_2026};

use crate::{limits, text_between};

/// A transport between two processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wire {
    /// The pipes of a child's stdin and stdout.
    Stdio,
    /// The same, with headers in place of line ends.
    ContentLength,
    /// A Unix domain socket.
    NamedPipe,
    /// A WebSocket.
    WebSocket,
    /// The binding `streamable` in HTTP/1.1.
    Streamable,
    /// The same in HTTP/2.
    Streamable2,
    /// The binding `stateless` in HTTP/1.1.
    Stateless,
    /// The same in HTTP/2.
    Stateless2,
    /// The binding `acp`, which is HTTP/2.
    Acp,
}

impl Wire {
    /// All that carry small frames: [`ContentLength`](Self::ContentLength) differs from [`Stdio`](Self::Stdio) in how the end of a
    /// large one is found.
    pub const ALL: [Self; 8] = [
        Self::Stdio,
        Self::NamedPipe,
        Self::WebSocket,
        Self::Streamable,
        Self::Streamable2,
        Self::Stateless,
        Self::Stateless2,
        Self::Acp,
    ];

    /// Its name in the table and on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Stdio => "stdio",
            Self::ContentLength => "content-length",
            Self::NamedPipe => "named-pipe",
            Self::WebSocket => "websocket",
            Self::Streamable => "http-streamable",
            Self::Streamable2 => "http-streamable-h2",
            Self::Stateless => "http-stateless",
            Self::Stateless2 => "http-stateless-h2",
            Self::Acp => "http-acp",
        }
    }

    /// Whether frames are posted.
    #[must_use]
    pub const fn is_http(self) -> bool {
        !matches!(self, Self::Stdio | Self::ContentLength | Self::NamedPipe | Self::WebSocket)
    }

    /// W1: the microseconds that an echo of 64 B may take above the floor.
    #[must_use]
    pub const fn echo_limit(self) -> f64 {
        if self.is_http() { limits::ECHO_OVER_HTTP } else { limits::ECHO_BETWEEN_PROCESSES }
    }

    /// The second round's limit of the same. `None`: it is that of the first.
    #[must_use]
    pub const fn second_echo_limit(self) -> Option<f64> {
        match self {
            Self::Streamable | Self::Stateless => Some(limits::ECHO_OVER_HTTP1),
            Self::Streamable2 | Self::Stateless2 | Self::Acp => Some(limits::ECHO_OVER_HTTP2),
            Self::Stdio | Self::ContentLength | Self::NamedPipe | Self::WebSocket => None,
        }
    }

    /// The most KiB of an idle session in the server. `None`: it has no limit.
    #[must_use]
    pub const fn idle_limit(self) -> Option<f64> {
        match self {
            Self::Stdio | Self::ContentLength => None,
            Self::NamedPipe => Some(limits::IDLE_NAMED_PIPE),
            Self::WebSocket => Some(limits::IDLE_WEBSOCKET),
            Self::Streamable | Self::Streamable2 | Self::Stateless | Self::Stateless2 | Self::Acp => {
                Some(limits::IDLE_HTTP)
            }
        }
    }

    pub(crate) const fn is_http2(self) -> bool {
        matches!(self, Self::Streamable2 | Self::Stateless2 | Self::Acp)
    }

    /// Whether it is the pipes of a child, which has one client.
    pub(crate) const fn is_of_a_child(self) -> bool {
        matches!(self, Self::Stdio | Self::ContentLength)
    }

    /// Whether the server may send messages without a request.
    pub(crate) const fn is_two_way(self) -> bool {
        !matches!(self, Self::Stateless | Self::Stateless2)
    }

    pub(crate) const fn dialect(self) -> Dialect {
        match self {
            Self::Stdio | Self::ContentLength | Self::NamedPipe | Self::WebSocket | Self::Acp => ACP,
            Self::Streamable | Self::Streamable2 => MCP,
            Self::Stateless | Self::Stateless2 => MCP_2026,
        }
    }

    /// Params of an echo with this many bytes.
    #[must_use]
    pub fn params(self, bytes: usize) -> Box<serde_json::value::RawValue> {
        let begin = if self.is_two_way() {
            r#"{"text":""#
        } else {
            concat!(
                r#"{"_meta":{"io.modelcontextprotocol/clientCapabilities":{},"#,
                r#""io.modelcontextprotocol/protocolVersion":"2026-07-28"},"text":""#,
            )
        };
        text_between(begin, bytes, r#""}"#)
    }
}
