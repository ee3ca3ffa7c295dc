//! The share of each client on a connection that carries several clients.

use super::*;
use crate::dialect::{ACP, Refusal};

fn shared() -> Bench {
    Bench::with(ACP, |config| {
        (
            config.limits.max_running_handlers,
            config.limits.max_blocking_handlers,
            config.limits.max_queued_requests,
        ) = (4, 2, 4);
        config.client_limits = Some(ClientLimits::new(2, 1, 2));
    })
}

fn ask(bench: &mut Bench, client: usize, id: i64, work: Work) -> Option<InboundKey> {
    let origin = Origin { client: Some(ClientNumber(client)), ..Origin::STREAM };
    let arrival = InboundRequest { origin, work, ..Bench::arrival(id, "test/wait") };
    bench.session.recv_request(bench.now, arrival)
}

fn end(bench: &mut Bench, key: InboundKey) -> Vec<Output> {
    bench.session.local_answer(bench.now, key, HandlerResult::Value);
    bench.session.local_ended(bench.now, key);
    bench.outputs()
}

fn started(outputs: &[Output]) -> Vec<InboundKey> {
    let key = |output: &Output| if let Output::Start(key) = output { Some(*key) } else { None };
    outputs.iter().filter_map(key).collect()
}

#[test]
fn a_client_that_hangs_leaves_permits_and_queue_to_others() {
    let mut bench = shared();
    let greedy: Vec<_> = (1..=4).map(|id| ask(&mut bench, 1, id, Work::Task).unwrap()).collect();
    assert_eq!(started(&bench.outputs()), greedy[..2], "its share; the rest waits");
    assert_eq!(ask(&mut bench, 1, 5, Work::Task), None);
    let outputs = bench.outputs();
    assert_eq!(outputs[0], Output::Event(Event::LimitReached("client_queued")));
    assert!(matches!(outputs[1], Output::Refuse { why: Refusal::Overloaded("client_queued"), .. }));
    let other = ask(&mut bench, 2, 6, Work::Task).unwrap();
    assert_eq!(started(&bench.outputs()), [other], "at once, before the queued ones");
    assert_eq!(started(&end(&mut bench, other)), [], "its permit is not for the other client");
    assert_eq!(started(&end(&mut bench, greedy[0])), [greedy[2]]);
    for key in [greedy[1], greedy[2], greedy[3]] {
        let _ = end(&mut bench, key);
    }
    bench.assert_no_residue();
}

#[test]
fn queued_requests_start_in_order_of_arrival_except_those_over_their_share() {
    let mut bench = shared();
    let running: Vec<_> = [(1, 1), (1, 2), (2, 3), (2, 4)]
        .map(|(client, id)| ask(&mut bench, client, id, Work::Task).unwrap())
        .into();
    let [first, third, again] =
        [(1, 5), (3, 6), (1, 7)].map(|(client, id)| ask(&mut bench, client, id, Work::Task).unwrap());
    assert_eq!(started(&bench.outputs()), running);
    assert_eq!(started(&end(&mut bench, running[2])), [third], "the first client has its share");
    assert_eq!(started(&end(&mut bench, running[0])), [first]);
    assert_eq!(started(&end(&mut bench, first)), [again]);
    for key in [running[1], running[3], third, again] {
        let _ = end(&mut bench, key);
    }
    bench.assert_no_residue();
}

#[test]
fn blocking_work_has_its_own_share_and_queue_entries_are_released() {
    let mut bench = shared();
    let blocking = ask(&mut bench, 1, 1, Work::Blocking).unwrap();
    let waiting = [2, 3].map(|id| ask(&mut bench, 1, id, Work::Blocking).unwrap());
    assert_eq!(started(&bench.outputs()), [blocking]);
    let other = ask(&mut bench, 2, 4, Work::Blocking).unwrap();
    assert_eq!(started(&bench.outputs()), [other]);
    assert_eq!(ask(&mut bench, 1, 5, Work::Blocking), None);
    let _ = bench.outputs();
    let time = bench.session.limits().queue_timeout;
    let _ = bench.pass(time);
    assert!(waiting.iter().all(|key| bench.session.request_cause(*key).is_none()));
    let again = ask(&mut bench, 1, 6, Work::Blocking).unwrap();
    assert_eq!(started(&bench.outputs()), []);
    assert_eq!(started(&end(&mut bench, blocking)), [again]);
    for key in [other, again] {
        let _ = end(&mut bench, key);
    }
    bench.assert_no_residue();
}
