//! What waits: its weight, its bounds, and the memory it takes.

use super::*;
use crate::id::CallKey;

fn note(owner: u32) -> Bulk {
    let owner = Some(InboundKey(CallKey { slot: owner, generation: 0 }));
    Bulk::Notification(Notification {
        owner,
        exchange: ExchangeId::NONE,
        method: Arc::from("tick"),
        params: None,
    })
}

#[test]
fn silence_drops_the_frames_of_one_request_and_gives_their_room_back() {
    let mut outbox = Outbox::new();
    for place in 0..200 {
        outbox.push_bulk(note(place % 2));
    }
    outbox.silence(InboundKey(CallKey { slot: 1, generation: 0 }));
    assert_eq!((outbox.frames(), outbox.room.frames), (100, 100));
    let mut left = 0;
    while let Some(frame) = outbox.pop_bulk() {
        match frame {
            Bulk::Notification(frame) => {
                assert_eq!(frame.owner.map(|owner| owner.0.slot), Some(0), "I2");
                left += 1;
            }
            Bulk::Dropped => {}
            Bulk::Call(_) | Bulk::Answer { .. } => panic!("nobody queued this"),
        }
    }
    assert_eq!((left, outbox.room.frames, outbox.bytes()), (100, 0, 0));
}

#[test]
fn a_cascade_lets_others_have_their_turn_which_may_be_passed() {
    let mut outbox = Outbox::new();
    let mut slots = super::super::slots::Slots::new();
    outbox.push_bulk(note(0));
    outbox.push_bulk(note(0));
    for _ in 0..3 * ROW {
        outbox.push_control(Control::Cancel(slots.insert(())));
    }
    let mut lanes = Vec::new();
    while let Some(lane) = outbox.next_lane() {
        match lane {
            Lane::Control => drop(outbox.pop_control()),
            Lane::Bulk => drop(outbox.pop_bulk()),
        }
        lanes.push(lane);
    }
    let row = || std::iter::repeat_n(Lane::Control, ROW);
    let wanted = row().chain([Lane::Bulk]).chain(row()).chain([Lane::Bulk]).chain(row());
    assert!(lanes.iter().copied().eq(wanted), "{lanes:?}");

    outbox.push_bulk(note(0));
    for _ in 0..2 * ROW {
        outbox.push_control(Control::Cancel(slots.insert(())));
    }
    for waits in [true, false] {
        for _ in 0..ROW {
            assert_eq!(outbox.next_lane(), Some(Lane::Control), "a cancel overtakes what waits");
            outbox.pop_control();
        }
        assert_eq!(outbox.next_lane(), Some(Lane::Bulk));
        assert_eq!(outbox.pass_turn(), waits);
    }
}

#[test]
fn calls_taken_back_leave_no_trail() {
    let mut outbox = Outbox::new();
    let mut slots = super::super::slots::Slots::new();
    for _ in 0..100_000 {
        let ticket = slots.insert(());
        outbox.push_bulk(Bulk::Call(ticket));
        slots.remove(ticket);
        outbox.took_back(|ticket| slots.get(ticket).is_some());
    }
    assert!(outbox.bulk.len() < 256, "I11: {} places", outbox.bulk.len());
}

#[test]
fn calls_taken_back_are_swept_although_a_silence_swept_before() {
    let mut outbox = Outbox::new();
    let mut slots = super::super::slots::Slots::new();
    for _ in 0..12 {
        for _ in 1..outbox.bulk.len().max(64) {
            let ticket = slots.insert(());
            outbox.push_bulk(Bulk::Call(ticket));
            slots.remove(ticket);
            outbox.took_back(|ticket| slots.get(ticket).is_some());
        }
        outbox.push_bulk(note(1));
        outbox.silence(InboundKey(CallKey { slot: 1, generation: 0 }));
    }
    assert!(outbox.bulk.len() < 256, "I11: {} places", outbox.bulk.len());
}

#[test]
fn room_is_bounded_and_one_large_frame_always_fits_an_empty_outbox() {
    let limits = Limits::default();
    let mut outbox = Outbox::new();
    assert!(outbox.has_room(&limits, limits.outbox_bytes * 2));
    for _ in 0..limits.outbox_frames {
        assert!(outbox.has_room(&limits, 200));
        outbox.push_bulk(note(0));
    }
    assert!(!outbox.has_room(&limits, 200));
}
