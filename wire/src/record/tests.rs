use super::*;
use crate::layout::{Layout, Shape, Var, var};
use crate::schema::Field;

fn shape(fields: &[(&str, Shape)]) -> Layout {
    Layout::new("T".into(), fields.iter().map(|(n, s)| (n.to_string(), s.clone())).collect())
}

struct Trees(Vec<usize>);
impl Spill for Trees {
    fn bytes(&mut self, b: &[u8]) -> Result<Oref, EncodeError> {
        self.0.push(b.len());
        Ok(Oref::from_raw(1 << 9).unwrap())
    }
    fn refs(&mut self, r: &[Oref]) -> Result<Oref, EncodeError> {
        self.0.push(r.len());
        Ok(Oref::from_raw(2 << 9).unwrap())
    }
}

#[test]
fn encoded_record_passes_check_and_reads_back() {
    let l = shape(&[
        ("n", Shape::Scalar(Scalar::I64)),
        ("t", Shape::Text),
        ("r", Shape::List(Box::new(Shape::Ref("".into())))),
        ("o", Shape::Option(Box::new(Shape::Text))),
        ("tt", Shape::List(Box::new(Shape::Text))),
    ]);
    let mut no = NoSpill;
    let mut e = Encoder::new(l.size(), &mut no);
    (-5i64).put(&mut e, l.fields()[0].at);
    Text::from("hello").put(&mut e, l.fields()[1].at);
    let r = Ref::<Any>::new(Oref::from_raw(7 << 9).unwrap());
    List(vec![r, Ref::NULL]).put(&mut e, l.fields()[2].at);
    None::<Text>.put(&mut e, l.fields()[3].at);
    List(vec![Text::from("a"), Text::from(""), Text::from("bc")]).put(&mut e, l.fields()[4].at);
    let bytes = e.finish(ClassId(20)).unwrap();
    let body = &bytes[HEADER_BYTES..];
    l.check(body).unwrap();
    assert_eq!(body[..8], (-5i64).to_le_bytes());
    let Var::Here { at, len } = var(body, l.fields()[1].at) else { panic!() };
    assert_eq!(&body[at..at + len], b"hello");
    assert_eq!(var(body, l.fields()[3].at), Var::None);
    let mut refs = vec![];
    l.refs(body, |at| refs.push(crate::cursor::le32(body, at)));
    assert_eq!(refs, [7 << 9, 0]);
    assert_eq!(l.used(body).next_multiple_of(4), body.len());
}

#[test]
fn large_parts_become_trees() {
    let l = shape(&[("b", Shape::Bytes), ("r", Shape::List(Box::new(Shape::Ref("".into()))))]);
    let mut trees = Trees(vec![]);
    let mut e = Encoder::new(l.size(), &mut trees);
    Bytes(vec![1; 5000]).put(&mut e, 0);
    List(vec![Ref::<Any>::NULL; 300]).put(&mut e, 4);
    let bytes = e.finish(ClassId(20)).unwrap();
    let body = &bytes[4..];
    l.check(body).unwrap();
    assert!(matches!(var(body, 0), Var::Spilled { len: 5000, .. }));
    let mut n = 0;
    l.refs(body, |_| n += 1);
    assert_eq!((n, trees.0), (2, vec![5000, 300]));
}

#[test]
fn references_are_found_in_optional_elements_of_lists() {
    let record = shape(&[("r", Shape::Ref("".into()))]);
    let l = shape(&[
        ("o", Shape::List(Box::new(Shape::Option(Box::new(Shape::Ref("".into())))))),
        ("r", Shape::List(Box::new(Shape::Option(Box::new(Shape::Record(Box::new(record))))))),
        ("d", Shape::Ref("".into())),
    ]);
    let r = Ref::<Any>::new(Oref::from_raw(7 << 9).unwrap());
    let mut no = NoSpill;
    let mut e = Encoder::new(l.size(), &mut no);
    List(vec![Some(r), None]).put(&mut e, l.fields()[0].at);
    let block = e.put_block(l.fields()[1].at, 2, 8, 4).unwrap();
    e.set(block, &[1]);
    r.put(&mut e, block + 4);
    r.put(&mut e, l.fields()[2].at);
    let bytes = e.finish(ClassId(20)).unwrap();
    l.check(&bytes[4..]).unwrap();
    let mut refs = vec![];
    l.refs(&bytes[4..], |at| refs.push(crate::cursor::le32(&bytes[4..], at)));
    assert_eq!(refs, [7 << 9, 7 << 9, 0, 7 << 9]);
}

#[test]
fn bytes_of_absent_values_in_elements_are_no_references() {
    let inner = Shape::Record(Box::new(shape(&[("r", Shape::Ref("".into()))])));
    let element = Shape::Record(Box::new(shape(&[("o", Shape::Option(Box::new(inner)))])));
    let l = shape(&[("l", Shape::List(Box::new(element)))]);
    let mut no = NoSpill;
    let mut e = Encoder::new(l.size(), &mut no);
    let block = e.put_block(l.fields()[0].at, 2, 8, 4).unwrap();
    e.set(block, &[1]);
    // The second element has no value, and nothing checks what stands in its place.
    e.set(block + 12, &[0xff; 4]);
    let bytes = e.finish(ClassId(20)).unwrap();
    l.check(&bytes[4..]).unwrap();
    let mut found = vec![];
    l.refs(&bytes[4..], |at| found.push(at));
    assert_eq!(found, [block + 4]);
}

#[test]
fn a_type_and_its_shape_agree_on_what_may_leave_a_record() {
    const NUMBERS: Schema = Schema {
        name: "Numbers",
        fields: &[
            Field { name: "a", ty: Type::Array(Scalar::U16, 3) },
            Field { name: "o", ty: Type::Option(&Type::Scalar(Scalar::I64)) },
        ],
    };
    const NESTED: Schema = Schema {
        name: "Nested",
        fields: &[
            Field { name: "r", ty: Type::Record(&NUMBERS) },
            Field { name: "o", ty: Type::Option(&Type::Record(&NUMBERS)) },
        ],
    };
    const WITH_REF: Schema =
        Schema { name: "WithRef", fields: &[Field { name: "o", ty: Type::Option(&Type::Ref("")) }] };
    const WITH_TEXT: Schema = Schema { name: "WithText", fields: &[Field { name: "t", ty: Type::Text }] };
    for (ty, may) in [
        (Type::Scalar(Scalar::Bool), true),
        (Type::Array(Scalar::F64, 2), true),
        (Type::Ref("T"), true),
        (Type::Option(&Type::Scalar(Scalar::U32)), true),
        (Type::Record(&NUMBERS), true),
        (Type::Record(&NESTED), true),
        (Type::Option(&Type::Record(&NESTED)), true),
        (Type::Option(&Type::Ref("")), false),
        (Type::Record(&WITH_REF), false),
        (Type::Record(&WITH_TEXT), false),
        (Type::Option(&Type::Record(&WITH_TEXT)), false),
        (Type::Text, false),
        (Type::Bytes, false),
        (Type::List(&Type::Scalar(Scalar::U8)), false),
    ] {
        assert_eq!((ty.spills(), Shape::of(&ty).spills()), (may, may), "{ty:?}");
    }
}

#[test]
fn a_text_is_written_as_a_str_is() {
    let text = Text::from("Ann");
    assert_eq!(format!("{text}|{text:>5}|{text:.2}"), "Ann|  Ann|An");
}

#[test]
fn an_object_above_a_page_is_refused() {
    let mut no = NoSpill;
    let mut e = Encoder::new(4 * 10, &mut no).spill_above(1 << 16);
    for i in 0..10 {
        e.put_bytes(i * 4, &[1; 1000]);
    }
    assert!(matches!(e.finish(ClassId(20)), Err(EncodeError::TooLarge(_))));
}

#[test]
fn a_newer_class_reads_an_older_record() {
    let old = shape(&[("a", Shape::Scalar(Scalar::I16)), ("gone", Shape::Text), ("t", Shape::Text)]);
    let new = shape(&[
        ("t", Shape::Text),
        ("a", Shape::Scalar(Scalar::I64)),
        ("added", Shape::Option(Box::new(Shape::Text))),
    ]);
    assert!(new.accepts(&old).is_ok());
    let mut no = NoSpill;
    let mut e = Encoder::new(old.size(), &mut no);
    (-2i16).put(&mut e, 0);
    e.put_bytes(old.fields()[1].at, b"bye");
    e.put_bytes(old.fields()[2].at, b"kept");
    let bytes = e.finish(ClassId(16)).unwrap();
    let mut no = NoSpill;
    let mut e = Encoder::new(new.size(), &mut no);
    convert(&old, &bytes[4..], &new, &mut e, |_, _| false);
    let bytes = e.finish(ClassId(17)).unwrap();
    new.check(&bytes[4..]).unwrap();
    assert_eq!(bytes[4 + new.fields()[1].at..][..8], (-2i64).to_le_bytes());
    assert_eq!(var(&bytes[4..], new.fields()[2].at), Var::None);
}

#[test]
fn narrowing_is_refused_by_name() {
    let old = shape(&[("a", Shape::Scalar(Scalar::I64))]);
    let new = shape(&[("a", Shape::Scalar(Scalar::I32))]);
    assert!(new.accepts(&old).unwrap_err().to_string().contains("`a`"));
}
