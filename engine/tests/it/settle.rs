//! Ends of parts of transactions, and those whose word for them counts.

use tercel_engine::server::{Consulted, Input};
use tercel_wire::frame::Kind;
use tercel_wire::message::{Decision, Refusal};
use tercel_wire::vector::Vector;

use crate::across::{decided_there, has, space};
use crate::world::hand::{A, B, refused};

#[test]
fn operator_ends_part_of_another_client() {
    let mut s = space();
    let prepared = s.prepare(1, &[], &[(s.x, false, 7)]).unwrap();
    assert!(has(&s.settle_by(B, 1, prepared, true), Kind::Settled));
    assert_eq!(s.value(s.x), Some(7));
}

/// The word of a process of another user, such as the server of the space that decides, has that space asked.
#[test]
fn stranger_ends_no_part_of_another_client() {
    for (answer, is_told) in [
        (Consulted::Decided(Decision::Committed, decided_there()), true),
        (Consulted::Decided(Decision::Pending, Vector::default()), false),
        (Consulted::Decided(Decision::Unknown, Vector::default()), false),
        (Consulted::Failed("nobody is there".into()), false),
    ] {
        let mut s = space();
        s.hand.stranger = Some(B);
        let prepared = s.prepare(1, &[], &[(s.x, false, 7)]).unwrap();
        for is_committed in [false, true] {
            assert_eq!(s.settle_by(B, 1, prepared, is_committed), [], "it waits");
        }
        assert_eq!((s.value(s.x), s.hand.stat("prepared"), s.hand.consults.len()), (Some(1), 1, 0));
        s.hand.input(Input::Disconnected(A));
        s.pass(1);
        let asked = s.hand.consults.pop().expect("the space that decides is asked");
        let mut said = s.hand.input(Input::Consulted(s.hand.view(), asked, answer));
        said.extend(s.hand.sync());
        assert_eq!(has(&said, Kind::Settled), is_told, "{said:?}");
        let is_refused = |(why, text): &(Refusal, String)| {
            *why == Refusal::Unavailable && text.contains("run `tercel settle` on the server's host")
        };
        assert_eq!(refused(&said).filter(is_refused).is_some(), !is_told, "{said:?}");
        assert_eq!(s.hand.stat("prepared"), usize::from(!is_told));
    }
}

#[test]
fn client_ends_its_own_part_as_stranger() {
    let mut s = space();
    s.hand.stranger = Some(A);
    let prepared = s.prepare(1, &[], &[(s.x, false, 7)]).unwrap();
    assert!(has(&s.settle(1, prepared, true), Kind::Settled));
    // What is settled can be told by everyone.
    s.hand.stranger = Some(B);
    assert!(has(&s.settle_by(B, 1, prepared, false), Kind::Settled));
    assert_eq!(s.value(s.x), Some(7));
}
