//! What a binding of HTTP has to read of bodies, as data: methods and members are a protocol's, so its file names them.

/// What the binding `acp` reads: which session a message belongs to.
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

/// What the binding `stateless` reads: the members that headers repeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MirroredBodies {
    /// The revision that a message without one has.
    pub revision: &'static str,
    /// The member of `params._meta` with the revision. Each request has it.
    pub revision_member: &'static str,
    /// The member of `params._meta` with the capabilities. Each request has it.
    pub capabilities_member: &'static str,
    /// The member of params that `Mcp-Name` repeats, by method. A name that ends in `/` stands for all methods with
    /// this prefix.
    pub names: &'static [(&'static str, &'static str)],
    /// The method that calls a tool: `Mcp-Param-*` headers repeat members of its `arguments`.
    pub tool_call: &'static str,
}
