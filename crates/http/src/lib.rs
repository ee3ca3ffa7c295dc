//! HTTP as a wire: a module a binding, each with its client and its server.
