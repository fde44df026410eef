//! Classes as they are stored and sent, and what they say of each other.

use arbitrary::Unstructured;
use tercel_wire::id::ClassId;
use tercel_wire::layout::{Layout, padded};
use tercel_wire::message::Classes;

use crate::shapes;

/// Decodes the bytes as classes, and compares a class with a changed one.
pub fn run(data: &[u8]) {
    if let Ok(layout) = Layout::decode(data) {
        judge(&layout);
    }
    if let Ok(classes) = Classes::decode(data) {
        classes.classes.iter().for_each(|(_, layout)| judge(layout));
    }
    let mut u = Unstructured::new(data);
    let Ok(old) = shapes::layout(&mut u, 4) else { return };
    let Ok(new) = shapes::changed(&mut u, &old) else { return };
    for layout in [&old, &new] {
        let mut bytes = Vec::new();
        layout.encode(&mut bytes);
        let read = Layout::decode(&bytes);
        assert_eq!(read.is_ok(), layout.admissible().is_ok(), "{read:?}: {:?}", layout.admissible());
        if layout.admissible().is_ok() {
            judge(layout);
        }
    }
    let _ = (new.accepts(&old), old.accepts(&new));
}

fn judge(layout: &Layout) {
    assert_eq!(layout.admissible(), Ok(()));
    assert_eq!(layout.accepts(layout), Ok(()));
    let mut end = 0;
    for place in layout.fields() {
        assert!(place.at >= end && place.at % place.shape.align() == 0, "fields overlap");
        end = place.at + place.shape.size();
    }
    assert!(end <= layout.size());
    let mut bytes = Vec::new();
    let classes = Classes { classes: vec![(ClassId(16), layout.clone())] };
    classes.encode(&mut bytes);
    assert_eq!(Classes::decode(&bytes).as_ref(), Ok(&classes));
    let zeros = vec![0; padded(layout.size())];
    assert_eq!(layout.check(&zeros), Ok(()), "nothing but zeros is a record of any class");
}
