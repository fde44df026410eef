use super::*;

fn refused(shape: Shape) -> bool {
    Layout::new("T".into(), vec![("f".into(), shape)]).admissible().is_err()
}

#[test]
fn what_means_nothing_is_refused_however_deep() {
    let option = |s| Shape::Option(Box::new(s));
    let list = |s| Shape::List(Box::new(s));
    assert!(refused(list(option(option(Shape::Text)))));
    assert!(refused(option(Shape::Array(Scalar::U32, 0))));
    assert!(refused(list(Shape::Record(Box::new(Layout::new("".into(), vec![]))))));
    assert!(!refused(list(option(Shape::Text))));
    let twice = vec![("f".into(), Shape::Text), ("f".into(), Shape::Bytes)];
    assert!(Layout::new("T".into(), twice).admissible().is_err());
}

#[test]
fn an_empty_part_beyond_the_record_is_refused() {
    for shape in [Shape::Text, Shape::Bytes, Shape::List(Box::new(Shape::Ref("".into())))] {
        let optional = Shape::Option(Box::new(shape.clone()));
        for shape in [shape, optional] {
            let l = Layout::new("C".into(), vec![("f".into(), shape)]);
            assert_eq!(l.check(&[0, 0, 0, 0]), Ok(()));
            assert!(l.check(&[0x00, 0x35, 0, 0]).is_err());
        }
    }
}

fn variants(names: &[(&str, Option<Shape>)]) -> Shape {
    let fields = |shape: &Option<Shape>| shape.iter().map(|s| ("0".into(), s.clone())).collect();
    Shape::variants(
        "E".into(),
        names.iter().map(|(name, shape)| Layout::new(name.to_string(), fields(shape))).collect(),
    )
}

fn class(shape: Shape) -> Layout {
    Layout::new("C".into(), vec![("f".into(), shape)])
}

#[test]
fn a_value_of_no_variant_or_with_bytes_of_another_is_refused() {
    let l = class(variants(&[("A", None), ("B", Some(Shape::Scalar(Scalar::U8))), ("C", Some(Shape::Text))]));
    assert_eq!(l.check(&[1, 9, 0, 0, 0, 0, 0, 0]), Ok(()));
    for (body, why) in [
        ([0, 9, 0, 0, 0, 0, 0, 0], "are not zero"),
        ([2, 9, 0, 0, 0, 0, 0, 0], "are not zero"),
        ([3, 0, 0, 0, 0, 0, 0, 0], "of no variant"),
        ([255, 0, 0, 0, 0, 0, 0, 0], "of no variant"),
    ] {
        assert!(l.check(&body).is_err_and(|e| e.to_string().contains(why)), "{body:?}");
    }
}

#[test]
fn an_enum_has_variants_of_different_names() {
    assert!(refused(variants(&[])));
    assert!(refused(variants(&[("A", None), ("A", Some(Shape::Text))])));
    assert!(refused(variants(&[("", None)])));
    assert!(!refused(variants(&[("A", None)])));
    let many: Vec<String> = (0..256).map(|i| format!("V{i}")).collect();
    let many: Vec<_> = many.iter().map(|name| (name.as_str(), None)).collect();
    assert!(refused(variants(&many)) && !refused(variants(&many[1..])));
    let no_record =
        Layout::new("E".into(), vec![("".into(), Shape::Scalar(Scalar::U8)), ("A".into(), Shape::Text)]);
    assert!(refused(Shape::Enum(Box::new(no_record))));
}

#[test]
fn an_enum_accepts_fewer_variants_and_reads_more() {
    let few = variants(&[("A", None), ("B", Some(Shape::Text))]);
    let more = variants(&[("A", None), ("B", Some(Shape::Text)), ("C", None)]);
    let within: [fn(Shape) -> Shape; 3] =
        [|s| s, |s| Shape::Option(Box::new(s)), |s| Shape::List(Box::new(Shape::Record(Box::new(class(s)))))];
    for within in within {
        let (few, more) = (class(within(few.clone())), class(within(more.clone())));
        assert_eq!((more.accepts(&few), more.reads(&few), few.reads(&more)), (Ok(()), Ok(()), Ok(())));
        assert!(few.accepts(&more).is_err_and(|e| e.to_string().contains("`C`")));
    }
}

#[test]
fn a_long_list_of_an_enum_that_became_wider_is_refused() {
    let list = |s| class(Shape::List(Box::new(s)));
    let old = list(variants(&[("A", None)]));
    assert_eq!(list(variants(&[("A", None), ("B", None)])).accepts(&old), Ok(()));
    let wider = list(variants(&[("A", None), ("B", Some(Shape::Scalar(Scalar::U8)))]));
    assert!(wider.accepts(&old).is_err(), "its bytes in chunks stay as they are");
}

#[test]
fn a_layout_comes_back_and_no_cut_of_it_does() {
    let inner = Layout::new("I".into(), vec![("a".into(), Shape::Array(Scalar::I16, 3))]);
    let l = Layout::new(
        "C".into(),
        vec![
            ("r".into(), Shape::List(Box::new(Shape::Record(Box::new(inner))))),
            ("o".into(), Shape::Option(Box::new(Shape::Ref("X".into())))),
            ("e".into(), variants(&[("A", None), ("B", Some(Shape::Text))])),
        ],
    );
    let mut bytes = Vec::new();
    l.encode(&mut bytes);
    assert_eq!(Layout::decode(&bytes), Ok(l));
    for cut in 0..bytes.len() {
        assert!(Layout::decode(&bytes[..cut]).is_err());
    }
}
