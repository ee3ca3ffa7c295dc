//! The frame of a large message. The library would copy the message into its buffer, would move the rest of the buffer
//! after each write that the socket accepts in part, and would keep the buffer until the connection ends.

use bytes::{Bytes, BytesMut};
use tokio_tungstenite::tungstenite::protocol::Role;
use tokio_tungstenite::tungstenite::protocol::frame::FrameHeader;
use tokio_tungstenite::tungstenite::protocol::frame::coding::{Data, OpCode};

/// The longest head of a frame, in bytes: two, a length of eight, and a key of four (RFC 6455, section 5.2).
const MAX_HEAD: usize = 14;

/// The key by which a message is masked. A server masks none.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mask(Option<[u8; 4]>);

/// Draws a key that the peer's user cannot guess (RFC 6455, section 5.3). `None`: the system gives no random bytes.
pub(super) fn draw_mask(role: Role) -> Option<Mask> {
    match role {
        Role::Server => Some(Mask(None)),
        Role::Client => {
            let mut key = [0; 4];
            getrandom::fill(&mut key).ok()?;
            Some(Mask(Some(key)))
        }
    }
}

/// The head of a text message in one frame, and its payload. The payload is the text itself, in the same memory.
pub(super) fn frame(text: Bytes, mask: Mask) -> (Vec<u8>, Bytes) {
    let Mask(key) = mask;
    let header = FrameHeader { opcode: OpCode::Data(Data::Text), mask: key, ..FrameHeader::default() };
    let mut head = Vec::with_capacity(MAX_HEAD);
    // A write into memory cannot fail.
    drop(header.format(text.len() as u64, &mut head));
    let payload = match key {
        Some(key) => masked(text, key),
        None => text,
    };
    (head, payload)
}

fn masked(text: Bytes, key: [u8; 4]) -> Bytes {
    // The driver gives its only handle to a frame away.
    let mut payload = text.try_into_mut().unwrap_or_else(|shared| BytesMut::from(&*shared));
    // Several bytes at once.
    let mut repeated = [0; 16];
    for (byte, key) in repeated.iter_mut().zip(key.into_iter().cycle()) {
        *byte = key;
    }
    let key = u128::from_ne_bytes(repeated);
    let mut words = payload.chunks_exact_mut(repeated.len());
    for word in &mut words {
        if let Ok(bytes) = <[u8; 16]>::try_from(&*word) {
            word.copy_from_slice(&(u128::from_ne_bytes(bytes) ^ key).to_ne_bytes());
        }
    }
    for (byte, key) in words.into_remainder().iter_mut().zip(repeated) {
        *byte ^= key;
    }
    payload.freeze()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_masked_in_its_own_memory() {
        for length in [0, 1, 3, 4, 5, 125, 126, 65_535, 65_536, 70_001] {
            let text: Vec<u8> = (b'a'..=b'z').cycle().take(length).collect();
            let key = [1, 2, 4, 8];
            let bytes = Bytes::from(text.clone());
            let memory = bytes.as_ptr();
            let (head, payload) = frame(bytes, Mask(Some(key)));
            assert!(length == 0 || payload.as_ptr() == memory, "a copy of {length} bytes");
            let unmasked: Vec<u8> =
                payload.iter().zip(key.iter().cycle()).map(|(byte, key)| byte ^ key).collect();
            assert_eq!(unmasked, text, "{length} bytes");
            let mut read = std::io::Cursor::new(&head);
            let (header, told) = FrameHeader::parse(&mut read).unwrap().unwrap();
            assert_eq!((told, header.mask, header.is_final), (length as u64, Some(key), true));
            assert_eq!(read.position(), head.len() as u64);
        }
    }

    #[test]
    fn a_text_that_others_hold_too_is_copied_before_it_is_masked() {
        let held = Bytes::from(vec![b'x'; 100]);
        let (_, payload) = frame(held.clone(), Mask(Some([1; 4])));
        assert_eq!((&held[..], &payload[..]), (&[b'x'; 100][..], &[b'y'; 100][..]));
        let (bare, same) = frame(held.clone(), Mask(None));
        assert_eq!((bare, same.as_ptr()), (vec![0x81, 100], held.as_ptr()));
    }
}
