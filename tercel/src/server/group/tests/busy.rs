//! Leaders whose loops are busy, or hang.

use std::thread;

use super::*;

/// Holds the loop of a member up with a procedure of its own.
fn hold(group: &Groups, i: usize, time: Duration) -> JoinHandle<()> {
    let client = group.client_of(i);
    thread::spawn(move || {
        // The client may give the server up meanwhile.
        let _ = client.service::<dyn Adder>().hold(time.as_millis() as u64);
    })
}

/// The view of a member, by its own word.
fn view(group: &Groups, i: usize) -> u64 {
    until(|| status_of(&group.members[i].1, WITHIN).ok()).view
}

#[test]
fn leader_with_long_work_leads_on() {
    let group = Groups::of(3);
    add(&group.client());
    let leader = group.leader();
    let before = view(&group, leader);
    for _ in 0..3 {
        hold(&group, leader, Duration::from_millis(700)).join().unwrap();
    }
    add(&group.client());
    assert_eq!((group.leader(), view(&group, leader)), (leader, before));
}

#[test]
fn leader_that_hangs_is_replaced() {
    let group = Groups::of(3);
    add(&group.client());
    let leader = group.leader();
    let (begun, holder) = (Instant::now(), hold(&group, leader, Duration::from_secs(6)));
    let others = [(leader + 1) % 3, (leader + 2) % 3];
    let next = until(|| others.into_iter().find(|i| group.health(*i) == Some(HealthState::Serving)));
    let after = begun.elapsed();
    // It is spoken for a second at most.
    assert!(after < Duration::from_secs(4), "member {next} leads after {after:?}");
    holder.join().unwrap();
}
