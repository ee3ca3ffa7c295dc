//! Checks the core's transports against the contract.

#![expect(clippy::unwrap_used, reason = "the harness is part of the tests")]

use std::io;

use bytes::{Bytes, BytesMut};
use futures_util::{SinkExt, StreamExt};
use rescind_core::{
    BoxFuture, ByteStream, FrameStream, Framing, Link, Listener, Transport, memory_listener, memory_pair,
};
use rescind_testkit::conformance::{Harness, RawBytes};
use tokio::io::{AsyncWriteExt, DuplexStream};
use tokio_util::codec::{Framed, LengthDelimitedCodec};

const MAX_FRAME: usize = 400 * 1024;

#[derive(Debug)]
struct Memory;

impl Harness for Memory {
    async fn connect(&self) -> (Link, Link) {
        memory_pair()
    }
}

#[derive(Debug)]
struct ListenedMemory;

impl Harness for ListenedMemory {
    async fn connect(&self) -> (Link, Link) {
        let (listener, transport) = memory_listener();
        let client = Box::new(transport).open().await.unwrap();
        let mut listener = Box::pin(listener);
        let server = listener.accept().await;
        (client, server.unwrap().unwrap())
    }
}

/// A duplex with a buffer of this many bytes.
#[derive(Debug)]
struct Duplex(Framing, usize);

impl Duplex {
    fn link(&self, stream: DuplexStream) -> Link {
        ByteStream::whole(stream).framing(self.0).max_frame(MAX_FRAME).into_link()
    }
}

impl Harness for Duplex {
    async fn connect(&self) -> (Link, Link) {
        let (a, b) = tokio::io::duplex(self.1);
        (self.link(a), self.link(b))
    }

    async fn connect_raw(&self) -> Option<(Link, Box<dyn RawBytes>)> {
        let (a, stream) = tokio::io::duplex(self.1);
        Some((self.link(a), Box::new(RawDuplex { framing: self.0, stream })))
    }
}

struct RawDuplex {
    framing: Framing,
    stream: DuplexStream,
}

impl RawBytes for RawDuplex {
    fn frame(&self, body: &[u8]) -> Vec<u8> {
        let mut out = BytesMut::new();
        self.framing.encode(body, &mut out);
        out.to_vec()
    }

    fn write<'a>(&'a mut self, bytes: &'a [u8]) -> BoxFuture<'a, io::Result<()>> {
        Box::pin(self.stream.write_all(bytes))
    }

    fn end(&mut self) -> BoxFuture<'_, io::Result<()>> {
        Box::pin(self.stream.shutdown())
    }
}

/// A codec of another crate, as a stream and a sink.
#[derive(Debug)]
struct Codec;

fn codec_link(stream: DuplexStream) -> Link {
    let (sink, stream) = Framed::new(stream, LengthDelimitedCodec::new()).split();
    let stream = stream.map(|frame| frame.map(BytesMut::freeze));
    FrameStream::new(stream, SinkExt::<Bytes>::sink_map_err(sink, io::Error::other)).into_link()
}

impl Harness for Codec {
    async fn connect(&self) -> (Link, Link) {
        let (a, b) = tokio::io::duplex(8192);
        (codec_link(a), codec_link(b))
    }
}

mod memory {
    rescind_testkit::conformance!(
        super::Memory,
        without {
            one_byte_at_a_time: "frames are handed over as they are, there are no bytes",
            end_of_input_inside_a_frame: "frames are handed over as they are, there are no bytes",
            oversize_then_a_valid_frame: "frames are handed over as they are, there are no bytes",
            bad_utf8_then_a_valid_frame: "frames are handed over as they are, there are no bytes",
        }
    );
}

mod listened_memory {
    rescind_testkit::conformance!(
        super::ListenedMemory,
        without {
            one_byte_at_a_time: "frames are handed over as they are, there are no bytes",
            end_of_input_inside_a_frame: "frames are handed over as they are, there are no bytes",
            oversize_then_a_valid_frame: "frames are handed over as they are, there are no bytes",
            bad_utf8_then_a_valid_frame: "frames are handed over as they are, there are no bytes",
        }
    );
}

mod newline {
    rescind_testkit::conformance!(super::Duplex(rescind_core::Framing::Newline, 8192));
}

mod newline_through_a_narrow_pipe {
    rescind_testkit::conformance!(super::Duplex(rescind_core::Framing::Newline, 64));
}

mod content_length {
    rescind_testkit::conformance!(super::Duplex(rescind_core::Framing::ContentLength, 8192));
}

mod content_length_through_a_narrow_pipe {
    rescind_testkit::conformance!(super::Duplex(rescind_core::Framing::ContentLength, 64));
}

mod codec {
    rescind_testkit::conformance!(
        super::Codec,
        without {
            one_byte_at_a_time: "the bytes are read by somebody else's codec",
            end_of_input_inside_a_frame: "the bytes are read by somebody else's codec",
            oversize_then_a_valid_frame: "the bytes are read by somebody else's codec",
            bad_utf8_then_a_valid_frame: "the bytes are read by somebody else's codec",
        }
    );
}
