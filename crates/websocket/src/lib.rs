//! What a WebSocket is to Rescind: one JSON text message a frame, in both directions.
