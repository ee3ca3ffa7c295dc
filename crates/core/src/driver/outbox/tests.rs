//! Frames that wait: their sizes, their limits, and their memory.

use super::*;
use crate::cause::CauseKind;
use crate::id::CallKey;
use crate::machine::ReplyBody;
use crate::message::ErrorCode;

fn note(owner: u32) -> DataFrame {
    let owner = Some(InboundKey(CallKey { slot: owner, generation: 0 }));
    DataFrame::Notification(Notification {
        owner,
        exchange: ExchangeId::NONE,
        method: Arc::from("tick"),
        params: None,
    })
}

#[test]
fn silence_drops_the_frames_of_one_request_and_gives_their_room_back() {
    let mut outbox = Outbox::new();
    for entry in 0..200 {
        outbox.push_data(note(entry % 2));
    }
    outbox.silence(InboundKey(CallKey { slot: 1, generation: 0 }));
    assert_eq!((outbox.frames(), outbox.room.frames), (100, 100));
    let mut left = 0;
    while let Some(frame) = outbox.pop_data() {
        match frame {
            DataFrame::Notification(frame) => {
                assert_eq!(frame.owner.map(|owner| owner.0.slot), Some(0), "I2");
                left += 1;
            }
            DataFrame::Dropped => {}
            DataFrame::Call(_) | DataFrame::Answer { .. } => panic!("this was not queued"),
        }
    }
    assert_eq!((left, outbox.room.frames, outbox.bytes()), (100, 0, 0));
}

#[test]
fn cancels_of_a_cascade_alternate_with_other_frames() {
    let mut outbox = Outbox::new();
    let mut slots = crate::collections::SlotMap::new();
    outbox.push_data(note(0));
    outbox.push_data(note(0));
    for _ in 0..3 * MAX_CANCELS_IN_ROW {
        outbox.push_control(Control::Cancel(SlotKey(slots.insert(()))));
    }
    let mut lanes = Vec::new();
    while let Some(lane) = outbox.next_lane() {
        match lane {
            Lane::Control => drop(outbox.pop_control()),
            Lane::Data => drop(outbox.pop_data()),
        }
        lanes.push(lane);
    }
    let row = || std::iter::repeat_n(Lane::Control, MAX_CANCELS_IN_ROW);
    let wanted = row().chain([Lane::Data]).chain(row()).chain([Lane::Data]).chain(row());
    assert!(lanes.iter().copied().eq(wanted), "{lanes:?}");

    outbox.push_data(note(0));
    for _ in 0..2 * MAX_CANCELS_IN_ROW {
        outbox.push_control(Control::Cancel(SlotKey(slots.insert(()))));
    }
    for waits in [true, false] {
        for _ in 0..MAX_CANCELS_IN_ROW {
            assert_eq!(outbox.next_lane(), Some(Lane::Control), "a cancel overtakes what waits");
            outbox.pop_control();
        }
        assert_eq!(outbox.next_lane(), Some(Lane::Data));
        assert_eq!(outbox.pass_turn(), waits);
    }
}

#[test]
fn calls_taken_back_leave_no_entries_in_the_outbox() {
    let mut outbox = Outbox::new();
    let mut slots = crate::collections::SlotMap::new();
    for _ in 0..100_000 {
        let slot_key = SlotKey(slots.insert(()));
        outbox.push_data(DataFrame::Call(slot_key));
        slots.remove(slot_key.0);
        outbox.took_back(|slot_key| slots.get(slot_key.0).is_some());
    }
    assert!(outbox.data.len() < 256, "I11: {} entries", outbox.data.len());
}

#[test]
fn calls_taken_back_are_swept_after_an_earlier_sweep_for_a_silence() {
    let mut outbox = Outbox::new();
    let mut slots = crate::collections::SlotMap::new();
    for _ in 0..12 {
        for _ in 1..outbox.data.len().max(64) {
            let slot_key = SlotKey(slots.insert(()));
            outbox.push_data(DataFrame::Call(slot_key));
            slots.remove(slot_key.0);
            outbox.took_back(|slot_key| slots.get(slot_key.0).is_some());
        }
        outbox.push_data(note(1));
        outbox.silence(InboundKey(CallKey { slot: 1, generation: 0 }));
    }
    assert!(outbox.data.len() < 256, "I11: {} entries", outbox.data.len());
}

#[test]
fn room_is_bounded_and_one_large_frame_always_fits_an_empty_outbox() {
    let limits = Limits::default();
    let mut outbox = Outbox::new();
    assert!(outbox.has_room(&limits, limits.max_outbox_bytes * 2));
    for _ in 0..limits.max_outbox_frames {
        assert!(outbox.has_room(&limits, 200));
        outbox.push_data(note(0));
    }
    assert!(!outbox.has_room(&limits, 200));
}

fn text(id: &str) -> RequestId {
    RequestId::text(id).unwrap()
}

fn raw(json: &str) -> Box<RawValue> {
    RawValue::from_string(json.to_owned()).unwrap()
}

fn reported(params: &str) -> DataFrame {
    DataFrame::Notification(Notification {
        owner: None,
        exchange: ExchangeId::NONE,
        method: Arc::from("tick"),
        params: Some(raw(params)),
    })
}

fn answer(id: RequestId, answer: Option<Answer>) -> DataFrame {
    let key = InboundKey(CallKey { slot: 0, generation: 0 });
    let (exchange, body) = (ExchangeId::NONE, ReplyBody::Handler);
    DataFrame::Answer { reply: Reply { key, id, tag: 0, server_cancellable: false, exchange, body }, answer }
}

/// Frames of the control lane except cancels, each with its size.
fn controls() -> [(Control, usize); 9] {
    let exchange = ExchangeId(3);
    let refuse = |to| Control::Refuse { to, exchange, why: Refusal::Internal };
    let ack = |ack, key| Control::Ack { ack, key, exchange, status: AckStatus::Cancelled };
    let (cause, graceful) = (Cause::new(CauseKind::Shutdown), None);
    let cancelled = Control::RefuseCancelled {
        id: text("abc"),
        tag: 0,
        server_cancellable: false,
        exchange,
        graceful,
        cause,
    };
    [
        (refuse(None), 128),
        (refuse(Some((text("abcde"), 0))), 133),
        // A number counts as the longest number.
        (refuse(Some((RequestId::number(7), 0))), 148),
        (cancelled, 131),
        (ack(RequestId::number(7), None), 148),
        (ack(text("ab"), Some(text("wxyz"))), 134),
        (Control::Begin(exchange), 16),
        (Control::Waiting(exchange), 16),
        (Control::ExchangeEnd { exchange, how: ExchangeEnd::Silent }, 16),
    ]
}

/// Frames of the data lane except calls, each with its size.
fn data_frames() -> [(DataFrame, usize); 7] {
    let error = ErrorObject::new(ErrorCode(5), "no");
    [
        (answer(text("r"), None), 129),
        (answer(RequestId::number(7), Some(Answer::Refused(Refusal::Internal))), 148),
        (answer(text("abc"), Some(Answer::Value(raw("[1,2]")))), 136),
        (answer(text("abc"), Some(Answer::Error(error.clone()))), 133),
        (answer(text("abc"), Some(Answer::Error(error.with_data(&[1, 23])))), 139),
        (note(0), 132),
        (reported("{}"), 134),
    ]
}

#[test]
fn each_queued_frame_counts_its_size_until_it_is_taken() {
    let mut outbox = Outbox::new();
    let mut slots = crate::collections::SlotMap::new();
    let (mut frames, mut bytes) = (0, 0);
    let waits = |outbox: &Outbox| (outbox.frames(), outbox.bytes());
    // Cancels and staged calls are in the slots of their calls and need no room.
    for _ in 0..2 {
        outbox.push_control(Control::Cancel(SlotKey(slots.insert(()))));
        outbox.push_data(DataFrame::Call(SlotKey(slots.insert(()))));
        frames += 2;
        assert_eq!(waits(&outbox), (frames, 0), "I11: a call or its cancel");
    }
    for (frame, weight) in controls() {
        let shown = format!("I11: {frame:?}");
        outbox.push_control(frame);
        (frames, bytes) = (frames + 1, bytes + weight);
        assert_eq!(waits(&outbox), (frames, bytes), "{shown}");
    }
    for (frame, weight) in data_frames() {
        let shown = format!("I11: {frame:?}");
        outbox.push_data(frame);
        (frames, bytes) = (frames + 1, bytes + weight);
        assert_eq!(waits(&outbox), (frames, bytes), "{shown}");
    }
    let calls = [0; 2];
    for weight in controls().map(|(_, weight)| weight).into_iter().chain(calls) {
        let taken = outbox.pop_control().unwrap();
        (frames, bytes) = (frames - 1, bytes - weight);
        assert_eq!(waits(&outbox), (frames, bytes), "I11: {taken:?} was taken");
    }
    for weight in calls.into_iter().chain(data_frames().map(|(_, weight)| weight)) {
        let taken = outbox.pop_data().unwrap();
        (frames, bytes) = (frames - 1, bytes - weight);
        assert_eq!(waits(&outbox), (frames, bytes), "I11: {taken:?} was taken");
    }
    assert_eq!(waits(&outbox), (0, 0));
    let mut limits = Limits::default();
    (limits.max_reserve_frames, limits.max_reserve_bytes) = (0, 0);
    assert!(outbox.has_room(&limits, usize::MAX), "an empty outbox takes one frame of any weight");
    assert!(!outbox.reserve_is_spent(&limits), "nothing is on the reserve");
}

#[test]
fn waiters_for_room_are_woken_when_a_quarter_of_frames_and_bytes_is_free() {
    // A frame has 200 bytes.
    let params = format!("[{}]", " ".repeat(66));
    for (max_frames, max_bytes) in [(8, 1 << 20), (1 << 20, 1600)] {
        let mut limits = Limits::default();
        (limits.max_outbox_frames, limits.max_outbox_bytes) = (max_frames, max_bytes);
        let mut outbox = Outbox::new();
        let room: Vec<_> = (0..8)
            .map(|_| {
                let room = outbox.has_room(&limits, 200);
                outbox.push_data(reported(&params));
                room
            })
            .collect();
        assert_eq!((room, outbox.has_room(&limits, 200)), (vec![true; 8], false), "I11: eight fill it");
        for (left, again) in [(8, false), (7, false), (6, true), (5, true)] {
            assert_eq!(outbox.frames(), left);
            assert_eq!(outbox.has_room_again(&limits), again, "{left} of 8 wait, {limits:?}");
            outbox.pop_data();
        }
    }
}

#[test]
fn the_reserve_is_spent_by_one_frame_or_one_byte_too_many() {
    let refusal = || Control::Refuse { to: None, exchange: ExchangeId::NONE, why: Refusal::Internal };
    for (max_frames, max_bytes) in [(3, 1 << 20), (1 << 20, 3 * 128)] {
        let mut limits = Limits::default();
        (limits.max_reserve_frames, limits.max_reserve_bytes) = (max_frames, max_bytes);
        let mut outbox = Outbox::new();
        // Frames that use the room do not count for the reserve.
        (0..10).for_each(|_| outbox.push_data(note(0)));
        for spent in [false, false, false, true, true] {
            outbox.push_control(refusal());
            let waiting = outbox.control.len();
            assert_eq!(outbox.reserve_is_spent(&limits), spent, "I11: {waiting} refusals wait");
        }
        outbox.pop_control();
        outbox.pop_control();
        assert!(!outbox.reserve_is_spent(&limits));
    }
}

#[test]
fn the_writer_is_woken_once_for_queued_frames_but_not_for_data_without_room() {
    let mut outbox = Outbox::new();
    let begin = || Control::Begin(ExchangeId(1));
    assert!(!outbox.take_news(), "nothing is queued");
    outbox.push_data(note(0));
    outbox.push_data(note(0));
    assert_eq!([outbox.take_news(), outbox.take_news()], [true, false]);
    outbox.push_control(begin());
    assert_eq!([outbox.take_news(), outbox.take_news()], [true, false]);
    outbox.blocked = true;
    outbox.push_data(note(0));
    assert!(!outbox.take_news(), "a wake-up for what cannot be written");
    outbox.push_control(begin());
    outbox.push_data(note(0));
    assert!(outbox.take_news(), "control frames are allowed while data frames are not");
}

#[test]
fn a_lane_that_was_full_releases_its_memory_when_empty() {
    let slot_key = SlotKey(crate::collections::SlotMap::new().insert(()));
    // Some places are kept, so that a lane in normal use does not allocate.
    for (capacity, kept) in
        [(4, true), (MAX_IDLE_CAPACITY, true), (MAX_IDLE_CAPACITY + 1, false), (4 * MAX_IDLE_CAPACITY, false)]
    {
        let mut outbox = Outbox::new();
        outbox.cancels = VecDeque::with_capacity(capacity);
        outbox.data = VecDeque::with_capacity(capacity);
        for _ in 0..2 {
            outbox.push_control(Control::Cancel(slot_key));
            outbox.push_data(DataFrame::Call(slot_key));
        }
        let taken = (outbox.cancels.capacity(), outbox.data.capacity());
        assert_eq!(taken, (capacity, capacity));
        outbox.pop_control();
        outbox.pop_data();
        let while_used = (outbox.cancels.capacity(), outbox.data.capacity());
        assert_eq!(while_used, taken, "memory moves while frames wait");
        outbox.pop_control();
        outbox.pop_data();
        let afterwards = if kept { capacity } else { 0 };
        let left = (outbox.cancels.capacity(), outbox.data.capacity());
        assert_eq!(left, (afterwards, afterwards), "I11: an empty lane with a capacity of {capacity}");
    }
}

#[test]
fn empty_entries_are_swept_when_there_are_as_many_as_waiting_frames() {
    for (dropped, left, capacity) in [
        (63, 0, 63),
        (64, 0, 0),
        (63, 1, 64),
        (64, 64, 64),
        (64, 65, 129),
        (100, 100, 100),
        (100, 101, 201),
        (150, 100, 100),
    ] {
        let mut outbox = Outbox::new();
        (0..dropped).for_each(|_| outbox.push_data(note(1)));
        (0..left).for_each(|_| outbox.push_data(note(0)));
        outbox.silence(InboundKey(CallKey { slot: 1, generation: 0 }));
        let seen = (outbox.frames(), outbox.data.len());
        assert_eq!(
            seen,
            (left, capacity),
            "I11: {dropped} dropped beside {left}: waiting frames, and entries"
        );
    }
}

#[test]
fn an_empty_entry_taken_from_the_lane_is_no_longer_counted() {
    let mut outbox = Outbox::new();
    outbox.push_data(note(1));
    outbox.push_data(note(0));
    outbox.silence(InboundKey(CallKey { slot: 1, generation: 0 }));
    assert_eq!(outbox.frames(), 1);
    assert!(matches!(outbox.pop_data(), Some(DataFrame::Dropped)));
    outbox.found_empty();
    assert_eq!(outbox.frames(), 1, "the frame behind it still waits");
}

#[test]
fn empty_entries_do_not_count_as_a_turn() {
    let mut slots = crate::collections::SlotMap::new();
    let [first, waiting, last] = [(); 3].map(|()| SlotKey(slots.insert(())));
    let mut outbox = Outbox::new();
    // Removed, dropped, waiting, removed.
    outbox.push_data(DataFrame::Call(first));
    outbox.push_data(note(1));
    outbox.push_data(DataFrame::Call(waiting));
    outbox.push_data(DataFrame::Call(last));
    (0..=MAX_CANCELS_IN_ROW).for_each(|_| outbox.push_control(Control::Cancel(first)));
    (0..MAX_CANCELS_IN_ROW).for_each(|_| drop(outbox.pop_control()));
    outbox.silence(InboundKey(CallKey { slot: 1, generation: 0 }));
    outbox.took_back(|_| true);
    outbox.took_back(|_| true);

    outbox.skip_empty(|call| call == waiting);
    assert_eq!(outbox.next_lane(), Some(Lane::Data), "the row is over, and a call waits");
    assert!(matches!(outbox.pop_data(), Some(DataFrame::Call(call)) if call == waiting));
    outbox.skip_empty(|call| call == waiting);
    assert_eq!(outbox.next_lane(), Some(Lane::Control), "only an empty entry is left in the data lane");
    assert_eq!((outbox.frames(), outbox.data.len()), (1, 0), "the last cancel");
}
