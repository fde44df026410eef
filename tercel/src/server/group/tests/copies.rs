//! Directories of members that are put back from older copies.

use std::process::Command;

use tercel_engine::order::quorum::remembered::Remembered;

use super::*;

/// Copies a directory whose server has stopped, as a snapshot of its machine does: no file tells of it.
fn copied(from: &Path, to: &Path) {
    copied_by_files(from, to);
    let _ = std::fs::remove_file(to.join("member"));
}

fn copied_by_files(from: &Path, to: &Path) {
    assert!(Command::new("cp").arg("-a").arg(from).arg(to).status().unwrap().success());
}

/// A copy that was made file by file, also of a member that runs, is not served beside its original, and
/// goes on where the original is given up.
#[test]
fn copy_by_files_is_not_served() {
    let mut group = Groups::of(3);
    add(&group.client());
    let member = (group.leader() + 1) % 3;
    let (dir, copy) = (group.members[member].0.clone(), group._dir.path().join("copy"));
    copied_by_files(&dir, &copy);
    let start = || crate::Server::builder(&copy).listen("127.0.0.1:0").start();
    for _ in 0..2 {
        let refused = start().err().unwrap().to_string();
        assert!(
            refused.contains("is a copy of a member") && refused.contains("copy/member, and start it"),
            "{refused}"
        );
    }
    add(&group.client());
    // A directory that is moved on its file system stays what it is.
    group.servers[member].take().unwrap().stop().unwrap();
    let moved = group._dir.path().join("moved");
    std::fs::rename(&dir, &moved).unwrap();
    std::fs::rename(&moved, &dir).unwrap();
    group.servers[member] = Some(group.start(member));
    group.servers[member].take().unwrap().stop().unwrap();
    // One that is moved elsewhere has new files: its operator says so.
    std::fs::remove_dir_all(&copy).unwrap();
    copied_by_files(&dir, &copy);
    std::fs::remove_dir_all(&dir).unwrap();
    copied_by_files(&copy, &dir);
    std::fs::remove_file(dir.join("member")).unwrap();
    group.servers[member] = Some(group.start(member));
    until(|| (group.health(member)? == HealthState::Following).then_some(()));
}

/// The starts that a member's file of votes has of another member.
fn known_start(dir: &Path, of: MemberId) -> Option<u64> {
    let remembered = Remembered::read(&std::fs::read(dir.join("votes")).ok()?, ViewId::NONE).ok()?;
    remembered.starts.iter().find(|(id, _)| *id == of).map(|(_, started)| started.number)
}

/// It has the space's number and its secret, and would acknowledge what its group never gets.
#[test]
fn directory_without_votes_is_no_lone_server() {
    let mut group = Groups::of(3);
    add(&group.client());
    let follower = (group.leader() + 1) % 3;
    group.servers[follower].take().unwrap().stop().unwrap();
    let dir = group.members[follower].0.clone();
    std::fs::remove_file(dir.join("votes")).unwrap();
    assert!(crate::disk::dir::is_member(&dir));
    let refused = crate::Server::builder(&dir).listen("127.0.0.1:0").start().err().unwrap().to_string();
    assert!(refused.contains("votes") && refused.contains("an empty directory"), "{refused}");
    // A check says the same, and of a secret that is none.
    std::fs::write(dir.join("secret"), "hello").unwrap();
    let report = crate::check::check(&dir, |_, _| ()).unwrap();
    let found: Vec<_> = report.findings.iter().filter(|of| of.kind == crate::check::Kind::Member).collect();
    let files: Vec<_> = found.iter().filter_map(|of| of.file.as_ref()?.file_name()?.to_str()).collect();
    assert_eq!(files, ["votes", "secret"], "{found:?}");
}

#[test]
fn older_copy_is_refused_at_each_start() {
    let mut group = Groups::of(3);
    let client = group.client();
    (0..5).for_each(|_| add(&client));
    // A follower is copied, and goes on. Then the others commit with it, and one of them is away.
    let leader = group.leader();
    let (copy, away) = ((leader + 1) % 3, (leader + 2) % 3);
    group.servers[copy].take().unwrap().stop().unwrap();
    let (dir, older) = (group.members[copy].0.clone(), group._dir.path().join("older"));
    copied(&dir, &older);
    group.servers[copy] = Some(group.start(copy));
    let me = Votes::look(&HeldDir::open(&older).unwrap(), ViewId::NONE).unwrap();
    let away_dir = group.members[away].0.clone();
    until(|| (known_start(&away_dir, me.me) == Some(me.start + 1)).then_some(()));
    group.servers[away].take().unwrap().stop().unwrap();
    (0..5).for_each(|_| add(&client));
    drop(client);
    for i in [leader, copy] {
        group.servers[i].take().unwrap().stop().unwrap();
    }
    let newer = group._dir.path().join("newer");
    std::fs::rename(&dir, &newer).unwrap();
    copied(&older, &dir);
    // The one that was away knows the start that the copy has not had, and has nobody else.
    group.servers[away] = Some(group.start(away));
    for _ in 0..4 {
        group.servers[copy] = Some(group.start(copy));
        let told = until(|| {
            let reason = health_of(group.address(copy), WITHIN).ok()?.reason;
            reason.contains("copy").then_some(reason)
        });
        assert!(told.contains("put back the newer directory"), "{told}");
        assert_ne!(group.health(away), Some(HealthState::Serving), "{told}");
        group.servers[copy].take().unwrap().stop().unwrap();
    }
    // The step that it names.
    std::fs::remove_dir_all(&dir).unwrap();
    std::fs::rename(&newer, &dir).unwrap();
    group.servers[copy] = Some(group.start(copy));
    assert_eq!(count(&group.client()), 10);
    group.servers[leader] = Some(group.start(leader));
    until(|| (group.health(leader)? == HealthState::Following).then_some(()));
}

#[test]
fn copy_of_before_a_member_joined_elects_nobody() {
    let mut group = Groups::begun();
    let second = group.join();
    group.vote(second);
    // The first member is copied before the third one joins: the copy does not know it, and answers it.
    group.servers[0].take().unwrap().stop().unwrap();
    let (dir, older) = (group.members[0].0.clone(), group._dir.path().join("older"));
    copied(&dir, &older);
    group.servers[0] = Some(group.start(0));
    let third = group.join();
    group.vote(third);
    let me = Votes::look(&HeldDir::open(&older).unwrap(), ViewId::NONE).unwrap();
    let third_dir = group.members[third].0.clone();
    until(|| (known_start(&third_dir, me.me) == Some(me.start + 1)).then_some(()));
    // What the third one lacks is acknowledged by the others.
    group.servers[third].take().unwrap().stop().unwrap();
    let client = group.client();
    (0..5).for_each(|_| add(&client));
    drop(client);
    for i in [0, second] {
        group.servers[i].take().unwrap().stop().unwrap();
    }
    let newer = group._dir.path().join("newer");
    std::fs::rename(&dir, &newer).unwrap();
    copied(&older, &dir);
    group.servers[third] = Some(group.start(third));
    for _ in 0..2 {
        group.servers[0] = Some(group.start(0));
        // It is refused where it connects, and where it answers.
        let told = |i: usize| {
            let health = health_of(group.address(i), WITHIN).ok()?;
            assert_ne!(health.state, HealthState::Serving, "{}", health.reason);
            health.reason.contains("copy").then_some(())
        };
        until(|| told(third));
        // Some elections long.
        let end = Instant::now() + Duration::from_secs(1);
        while Instant::now() < end {
            told(third);
            told(0);
        }
        group.servers[0].take().unwrap().stop().unwrap();
    }
    std::fs::remove_dir_all(&dir).unwrap();
    std::fs::rename(&newer, &dir).unwrap();
    group.servers[0] = Some(group.start(0));
    assert_eq!(count(&group.client()), 5);
}
