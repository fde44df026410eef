//! A record is exactly as long as its class and its own descriptors say: nothing stands behind its last part
//! but the padding of the format, which is zero. A cache walks objects by what they say of themselves.

use tercel_wire::id::{ClassId, PageId, SpaceId, Stamp};
use tercel_wire::layout::{Layout, Shape};
use tercel_wire::page::{PAGE_BYTES, Page, PageBuilder};
use tercel_wire::record::*;
use tercel_wire::schema::Scalar;

const CLASS: ClassId = ClassId(16);

fn class(shapes: &[Shape]) -> Layout {
    let names = ('a'..='z').map(String::from);
    Layout::new("C".into(), names.zip(shapes.iter().cloned()).collect())
}

/// A record of the class, header left out.
fn body(layout: &Layout, write: impl FnOnce(&mut Encoder<'_>)) -> Vec<u8> {
    let mut no = NoSpill;
    let mut e = Encoder::new(layout.size(), &mut no);
    write(&mut e);
    e.finish(CLASS).unwrap().split_off(HEADER_BYTES)
}

/// Classes of every form, each with a record that an encoder made.
fn records() -> Vec<(Layout, Vec<u8>)> {
    let list = |shape| Shape::List(Box::new(shape));
    let empty = class(&[]);
    let byte = class(&[Shape::Scalar(Scalar::U8)]);
    let numbers = class(&[Shape::Scalar(Scalar::U64), Shape::Array(Scalar::U16, 3)]);
    let text = class(&[Shape::Scalar(Scalar::U32), Shape::Text]);
    let refs = class(&[list(Shape::Ref("".into()))]);
    let texts = class(&[list(Shape::Text), Shape::Option(Box::new(Shape::Bytes))]);
    let written = [
        body(&empty, |_| ()),
        body(&byte, |e| 7u8.put(e, 0)),
        body(&numbers, |e| 7u64.put(e, 0)),
        body(&text, |e| Text::from("seven").put(e, 4)),
        body(&refs, |e| List(vec![Ref::<Any>::NULL; 3]).put(e, 0)),
        body(&texts, |e| {
            List(vec![Text::from("a"), Text::from("bc")]).put(e, 0);
            None::<Bytes>.put(e, 4);
        }),
    ];
    [empty, byte, numbers, text, refs, texts].into_iter().zip(written).collect()
}

#[test]
fn an_encoded_record_is_exactly_its_own() {
    for (layout, body) in records() {
        assert_eq!(layout.check(&body), Ok(()), "{layout:?}");
        assert_eq!(body.len(), layout.used(&body).next_multiple_of(4).max(4));
    }
}

#[test]
fn bytes_behind_the_last_part_are_refused() {
    for (layout, body) in records() {
        for words in [1, 2, 500] {
            let mut longer = body.clone();
            longer.resize(body.len() + 4 * words, 0);
            assert!(layout.check(&longer).is_err(), "{words} zero words behind a record of {layout:?} pass");
            longer[body.len()..].fill(0xee);
            assert!(layout.check(&longer).is_err(), "{words} words behind a record of {layout:?} pass");
        }
    }
}

#[test]
fn padding_that_is_not_zero_is_refused() {
    for (layout, body) in records() {
        for at in layout.used(&body)..body.len() {
            let mut bad = body.clone();
            bad[at] = 1;
            assert!(
                layout.check(&bad).is_err(),
                "byte {at} of a record of {layout:?} means nothing and passes"
            );
        }
    }
}

#[test]
fn a_record_without_its_padding_is_refused() {
    for (layout, body) in records() {
        for len in layout.used(&body)..body.len() {
            assert!(layout.check(&body[..len]).is_err(), "{len} bytes of a record of {layout:?} pass");
        }
    }
}

#[test]
fn a_slot_shorter_than_a_forward_is_refused() {
    let page = PageId::new(9).unwrap();
    let mut b = PageBuilder::new(Vec::new(), page, SpaceId(1));
    assert!(b.push(0, &[5, 0, 0, 0, 0, 2, 0, 0]));
    let mut bytes = b.finish(Stamp(3));
    assert!(Page::trusted(&bytes, page).is_ok());
    // A forward that ends before it says where to.
    bytes[PAGE_BYTES - 2..].copy_from_slice(&4u16.to_le_bytes());
    assert!(Page::trusted(&bytes, page).is_err(), "an object of a header alone passes");
}
