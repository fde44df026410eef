//! Archives of several histories of a space: restored spaces that are archived where they came from.

use std::path::Path;
use std::sync::Arc;

use tercel::Stamp;
use tercel::backup::stream::Tap;
use tercel_archive::catalogue::Catalogue;
use tercel_archive::restore::{Until, restore};
use tercel_archive::store::Store;
use tercel_archive::take::take;

use crate::place::{Place, in_each_store};
use crate::single::{Counting, archived, restored, until};

/// Archives some commits. Gives the moment up to which they are there.
fn archive(space: &mut Counting, store: &Arc<dyn Store>) -> u64 {
    let writer = space.archive(store);
    until(&writer, |status| status.bases > 0);
    for _ in 0..4 {
        space.count(10);
        archived(&writer, space.last());
    }
    let status = writer.stop();
    assert_eq!((status.gaps, status.ended), (0, None));
    status.upto_ms
}

/// Serves what an archive has up to a stamp.
fn served_again(space: Counting, store: &dyn Store, upto: Stamp, dir: &Path) -> Counting {
    restore(&Catalogue::open(store).unwrap(), Until::Stamp(upto), dir, &mut |_, _, _| ()).unwrap();
    let (counter, mut model) = space.stop();
    model.retain(|(stamp, _)| *stamp <= upto);
    Counting::restored(dir, counter, model)
}

/// The stamps of a model that an archive has, from the first base on.
fn stamps(space: &Counting, from: u64, upto: Stamp) -> impl Iterator<Item = (Stamp, u64)> {
    space.model.iter().copied().filter(move |(stamp, _)| stamp.0 >= from && *stamp <= upto)
}

fn restored_space_goes_on_in_its_archive(place: &dyn Place) {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let store = place.store("archive");
    let mut first = Counting::begin(&dir.join("first"), 1 << 30);
    let of_first = archive(&mut first, &store);
    let overtaken = first.last().1;
    let begins = Catalogue::open(&*store).unwrap().head.bases[0].stamp;
    let split = first.model[12].0;

    let mut second = served_again(first, &*store, split, &dir.join("second"));
    let of_second = archive(&mut second, &store);
    let head = Catalogue::open(&*store).unwrap().head;
    assert_eq!(head.histories.len(), 1, "{head:?}");
    assert_eq!((head.histories[0].of, head.histories[0].after), (0, split.0));
    let second_begins = head.bases[1].stamp;
    let at = |upto| restored(&*store, upto, &dir.join("restored")).unwrap();
    for (stamp, count) in stamps(&second, begins, split).step_by(5).chain([second.last()]) {
        assert_eq!(at(Until::Stamp(stamp)), count, "at {stamp}");
    }
    for (stamp, count) in stamps(&second, second_begins, Stamp::LAST).step_by(3) {
        assert_eq!(at(Until::Stamp(stamp)), count, "at {stamp}");
    }
    assert_eq!(at(Until::Moment(of_first)), overtaken);
    assert_eq!(at(Until::End), second.last().1);

    // A third one goes on before the second began.
    let (earlier, last_of_second) = (second.model[5].0, second.last().1);
    let mut third = served_again(second, &*store, earlier, &dir.join("third"));
    archive(&mut third, &store);
    let archive = Catalogue::open(&*store).unwrap();
    assert_eq!(archive.head.histories.len(), 2, "{:?}", archive.head);
    assert_eq!((archive.head.histories[1].of, archive.head.histories[1].after), (0, earlier.0));
    assert_eq!(archive.verify(|_| ()).unwrap().wrong, Vec::<String>::new());
    for (stamp, count) in [(earlier, third.at(earlier)), third.last()] {
        assert_eq!(at(Until::Stamp(stamp)), count, "at {stamp}");
    }
    assert_eq!(at(Until::Moment(of_first)), overtaken);
    assert_eq!(at(Until::Moment(of_second)), last_of_second);
}

/// A copy that was served with the archive has taken it over. It is given back by name, and kept.
fn archive_is_given_back_to_the_original(place: &dyn Place) {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let store = place.store("archive");
    let mut first = Counting::begin(&dir.join("first"), 1 << 30);
    archive(&mut first, &store);
    let split = first.last();
    let of_copy = dir.join("copy");
    restore(&Catalogue::open(&*store).unwrap(), Until::End, &of_copy, &mut |_, _, _| ()).unwrap();
    let mut copy = Counting::restored(&of_copy, first.counter, first.model.clone());
    // A copy of all that is there goes on behind it without a base.
    let writer = copy.archive(&store);
    copy.count(5);
    archived(&writer, copy.last());
    writer.stop();
    assert_eq!(Catalogue::open(&*store).unwrap().head.histories, []);
    let writer = first.archive(&store);
    let (_, why) = until(&writer, |status| status.trouble.is_some()).trouble.unwrap();
    assert!(why.contains("tercel archive take"), "{why}");

    let reader = Tap::of(&first.server).log(0).unwrap();
    take(&*store, reader.space(), reader.view(), "a test").unwrap();
    drop(reader);
    first.count(5);
    archived(&writer, first.last());
    assert_eq!(writer.status().trouble, None);
    let refused = copy.archive(&store);
    let (_, why) = until(&refused, |status| status.trouble.is_some()).trouble.unwrap();
    assert!(why.contains("was taken for another history"), "{why}");
    refused.stop();
    first.count(5);
    archived(&writer, first.last());
    writer.stop();
    let archive = Catalogue::open(&*store).unwrap();
    let histories = &archive.head.histories;
    assert_eq!((histories.len(), histories[0].of), (1, 0), "{:?}", archive.head);
    assert!(histories[0].after >= split.0.0 && histories[0].after < first.last().0.0, "{histories:?}");
    assert_eq!(archive.verify(|_| ()).unwrap().wrong, Vec::<String>::new());
    for (stamp, count) in [split, first.last()] {
        assert_eq!(restored(&*store, Until::Stamp(stamp), &dir.join("restored")).unwrap(), count);
    }
}

in_each_store!(archive_is_given_back_to_the_original, restored_space_goes_on_in_its_archive);
