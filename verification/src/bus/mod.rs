//! Exhaustive models of what happens between machines: the cancel bus over an engine (Redis or NATS), and the
//! forwarding of requests between nodes. They are written from the protocol and share no code with its implementation.
//!
//! # The cancel bus
//! A canceller sets a tombstone with a time to live, and then rings a doorbell. A watcher subscribes to the doorbell
//! of its key, waits for the confirmation, and then looks at the tombstone. If the watcher subscribed before the
//! doorbell was rung, it receives the doorbell. Otherwise its look comes after the tombstone was set, and finds it. So no
//! order of these four steps loses the cancel. A watcher whose connection was lost subscribes again to every key that
//! it watches and looks at each again.
//!
//! The search visits every state that can be reached with a few watchers, cancellers and faults: see [`CASES`].
//!
//! # What must hold
//! In every state that can be reached:
//! - B2: a request is only signalled by a cancel of its own key.
//! - B3: the bus signals a request at most once, and not after its end.
//! - B4: the bus signals nothing that nobody cancelled.
//! - B8: a cancel that returned success has set its tombstone and rung its doorbell.
//! - B9: a request is forwarded at most once.
//! - B10: a session is served by the node that made it, in the same life of that node, and this node refuses none of
//!   its requests.
//!
//! In every state in which nothing happens any more unless a client or a fault causes it:
//! - B1: a request whose cancel was acknowledged before its end is signalled, or has ended.
//! - B5: no tombstone is left.
//! - B6: no subscription and no doorbell is left of an ended request.
//! - B7: `is_cancelled` is true for a watched key whose cancel was acknowledged.
//! - B10: every client has an answer, or its request runs at the owner.
//! - B11: a client's own cancel that the owner accepted, on any way, has signalled its request. The same is true if the
//!   client left.
//!
//! B12: every run reaches such a state. Otherwise the conditions above would not say that something happens in the end.
//!
//! # Assumptions
//! The properties of the bus depend on three times (`cancels`): how long a watcher may be behind, how long a cancel
//! may take, and how long a tombstone lives, which must be longer than the sum of the two. The engine keeps its
//! tombstones while it is away. A failover that loses them can lose a cancel, which `engine-forgets` shows.
//!
//! Not in the models: a look that fails alone, while its connection stays (the watcher repeats it); the death of a
//! watcher's node, with which its requests end; `is_cancelled` of keys that are not watched; and NATS, whose watch
//! of a key delivers the look and the doorbells on one stream, which allows fewer orders.

mod bug;
mod cancels;
mod cases;
mod forwarding;
mod search;

pub use bug::Bug;
pub use cases::{CASES, Case, EVENTS, Size};
pub use search::{Found, Searched};
