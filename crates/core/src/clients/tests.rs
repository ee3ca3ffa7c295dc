use super::*;

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn named(name: &str) -> Principal {
    Principal(name.into())
}

#[test]
fn a_client_is_identified_by_principal_then_network_then_connection() {
    let clients = Clients::default();
    let of = |principal: Option<&str>, from: Option<&str>| {
        clients.client(principal.map(named).as_ref(), from.map(address))
    };
    let (ada, near) = (of(Some("ada"), Some("10.0.0.1")), of(None, Some("10.0.0.1")));
    let same = |one: &Arc<Client>, other: &Arc<Client>| Arc::ptr_eq(one, other);
    assert!(same(&ada, &of(Some("ada"), Some("10.0.0.2"))), "a principal goes before an address");
    assert!(!same(&ada, &near));
    assert!(same(&near, &of(None, Some("::ffff:10.0.0.1"))), "IPv4 written as IPv6");
    assert!(!same(&near, &of(None, Some("10.0.0.2"))), "IPv4 whole");
    let network = of(None, Some("2001:db8:1:2::1"));
    assert!(same(&network, &of(None, Some("2001:db8:1:2:ffff::9"))), "IPv6 by its first 64 bits");
    assert!(!same(&network, &of(None, Some("2001:db8:1:3::1"))));
    assert!(!same(&of(None, None), &of(None, None)), "each connection without either is a client");
    assert_ne!(of(None, None).number(), of(None, None).number());
}

#[test]
fn the_prefix_of_ipv6_can_be_set() {
    let [one, other] = ["2001:db8:1:2::1", "2001:db8:1:ffff::1"].map(address);
    for (prefix, are_one) in [(0, true), (48, true), (64, false), (128, false), (255, false)] {
        let clients = Clients::new(Share::HALF, prefix);
        let (one, other) = (clients.client(None, Some(one)), clients.client(None, Some(other)));
        assert_eq!(Arc::ptr_eq(&one, &other), are_one, "/{prefix}");
    }
}

#[test]
fn no_client_holds_more_than_its_share_regardless_of_arrival_order() {
    let clients = Clients::default();
    let (first, second) =
        (clients.client(None, Some(address("10.0.0.1"))), clients.client(None, Some(address("10.0.0.2"))));
    let took = |client: &Client| (0..8).filter(|_| client.take(Resource::Running, 8)).count();
    assert_eq!((took(&first), took(&second)), (4, 4));
    assert!(first.take(Resource::Draining, 8), "each kind is counted separately");
    first.give_back(Resource::Running, 1);
    assert_eq!(took(&first), 1, "what was given back");
}

#[test]
fn a_share_is_at_least_one_and_can_be_all() {
    let shares = |share: Share| [0, 1, 2, 3, 100, 1024, usize::MAX].map(|limit| share.of(limit));
    assert_eq!(shares(Share::HALF)[..6], [1, 1, 1, 1, 50, 512]);
    assert_eq!(shares(Share::ALL), [0, 1, 2, 3, 100, 1024, usize::MAX]);
    assert_eq!(shares(Share::percent(10))[..6], [1, 1, 1, 1, 10, 102]);
    assert!(shares(Share::HALF)[6] >= usize::MAX / 2 - 100);
    assert_eq!((Share::percent(0), Share::percent(255)), (Share::percent(1), Share::ALL));
}

#[test]
fn the_table_is_empty_without_clients() {
    let clients = Clients::default();
    for round in 0..10_000_u32 {
        let client = clients.client(None, Some(IpAddr::from(round.to_be_bytes())));
        let place = client.try_acquire(Resource::Sessions, 1024).unwrap();
        drop(client);
        assert_eq!(
            (clients.len(), place.client().held(Resource::Sessions)),
            (1, 1),
            "a permit keeps its client"
        );
    }
    assert!(clients.is_empty(), "I11");
    assert_eq!((clients.client(None, None).held(Resource::Sessions), clients.len()), (0, 0), "without a key");
}

#[test]
fn dropping_a_client_keeps_a_newer_client_of_the_same_key() {
    let clients = Clients::default();
    let from = Some(address("10.0.0.1"));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..2000 {
                    let one = clients.client(None, from);
                    assert!(Arc::ptr_eq(&one, &clients.client(None, from)), "two clients of one key");
                }
            });
        }
    });
    assert!(clients.is_empty());
}
