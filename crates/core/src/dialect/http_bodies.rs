//! The parts of a body that an HTTP binding must read, as data. A protocol defines its methods and members, so its file
//! names them.

/// What the binding `acp` reads from a body: the session that a message belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionBodies {
    /// The request that opens a connection. Its answer is the response to its own POST.
    pub opening: &'static str,
    /// The member of that answer's result that names the connection.
    pub connection: &'static str,
    /// The member of params, and of results, that names a session.
    pub session: &'static str,
    /// Methods of one session. A header must name it, even if their params do not.
    pub of_session: &'static [&'static str],
    /// Methods of a session whose answer is sent on the stream of the connection.
    pub answered_on_connection: &'static [&'static str],
    /// Methods with this prefix belong to the connection, even if their params name a session.
    pub of_connection: &'static str,
}

/// What a server without sessions reads from a body: which message is a cancel, and which request it names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CancelBodies {
    /// The notification that cancels a request.
    pub method: &'static str,
    /// The member of its params with the id of the request.
    pub request: &'static str,
}

/// The messages that a client of the binding `streamable` repeats when its server has forgotten the session, so that the
/// connection can go on in a new one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RenewalBodies {
    /// The request that opens a session.
    pub opening: &'static str,
    /// The member of its result that names the revision, a text. A session whose server named none is not opened again.
    pub revision: &'static str,
    /// The notification after its answer.
    pub opened: &'static str,
    /// Requests that set something for the whole session. The last one of each method is repeated.
    pub settings: &'static [&'static str],
    /// Pairs of requests, the second of which takes back the first, and the member of their params that names what
    /// they are about. Each that was not taken back is repeated.
    pub subscriptions: &'static [(&'static str, &'static str, &'static str)],
}

/// What the binding `stateless` reads from a body: the members that headers repeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MirroredBodies {
    /// The revision of a message that names none.
    pub revision: &'static str,
    /// The member of `params._meta` with the revision. Each request has it.
    pub revision_member: &'static str,
    /// The member of `params._meta` with the capabilities. Each request has it.
    pub capabilities_member: &'static str,
    /// The member of params that `Mcp-Name` repeats, by method. A name that ends in `/` means all methods with this
    /// prefix.
    pub names: &'static [(&'static str, &'static str)],
    /// The method that calls a tool: `Mcp-Param-*` headers repeat members of its `arguments`.
    pub tool_call: &'static str,
}
