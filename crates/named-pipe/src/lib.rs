//! Named pipes as a wire: Unix domain sockets, and the named pipes of Windows.
