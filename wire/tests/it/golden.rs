//! The bytes of every format, as the newest version promises them, written by today's code and read by it.

use crate::promise::Promises;
use std::sync::Mutex;

use tercel_wire::access::{Principal, Role};
use tercel_wire::class;
use tercel_wire::cursor::le32;
use tercel_wire::deframer::Deframer;
use tercel_wire::far::Far;
use tercel_wire::frame::{self, Header, Kind};
use tercel_wire::id::{ClassId, ClientId, MemberId, OpId, Oref, PageId, SpaceId, Stamp, ViewId};
use tercel_wire::interface::{Interface, InterfaceSchema, MethodSchema, Mode, NO_ITEMS};
use tercel_wire::layout::{Layout, Var, var};
use tercel_wire::message::*;
use tercel_wire::page::{Page, PageBuilder};
use tercel_wire::payload::PayloadSchema;
use tercel_wire::record::{
    Any, Bytes, EncodeError, Encoder, HEADER_BYTES, List, NoSpill, Ref, SPILL_BYTES, Spill, Text, Value,
};
use tercel_wire::schema::{Field, Scalar, Schema, TAG, Type};
use tercel_wire::token::Token;
use tercel_wire::vector::{Seen, Vector};

const CHANGED: &str = "formats are promises: make a new version";

fn written(write: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut out = Vec::new();
    write(&mut out);
    out
}

fn page_id(n: u32) -> PageId {
    PageId::new(n).unwrap()
}

fn oref(page: u32, slot: u16) -> Oref {
    Oref::new(page_id(page), slot).unwrap()
}

fn reference(page: u32, slot: u16) -> Ref<Any> {
    Ref::new(oref(page, slot))
}

// Records.

/// A record within one.
struct Inner {
    small: u8,
    text: Text,
    wide: i64,
}

const INNER: Schema = Schema {
    name: "golden.Inner",
    fields: &[
        Field { name: "small", ty: Type::Scalar(Scalar::U8) },
        Field { name: "text", ty: Type::Text },
        Field { name: "wide", ty: Type::Scalar(Scalar::I64) },
    ],
};

impl Value for Inner {
    const TYPE: Type = Type::Record(&INNER);
    fn put(&self, e: &mut Encoder<'_>, at: usize) {
        self.small.put(e, at + INNER.offset(0));
        self.text.put(e, at + INNER.offset(1));
        self.wide.put(e, at + INNER.offset(2));
    }
}

fn inner(n: u8, text: &str) -> Inner {
    Inner { small: n, text: text.into(), wide: -i64::from(n) }
}

/// Its name, what writes its value at a place, its type.
type Sample = (&'static str, Box<dyn FnOnce(&mut Encoder<'_>, usize)>, Type);

/// Schemas live as long as the program; so do those made here, where a sanitizer can still see them.
fn forever(fields: Vec<Field>) -> &'static [Field] {
    static KEPT: Mutex<Vec<&'static [Field]>> = Mutex::new(Vec::new());
    let fields: &'static [Field] = fields.leak();
    KEPT.lock().unwrap().push(fields);
    fields
}

fn field<V: Value + 'static>(name: &'static str, value: V) -> Sample {
    (name, Box::new(move |e: &mut Encoder<'_>, at: usize| value.put(e, at)), V::TYPE)
}

/// One field of every shape.
fn fields() -> Vec<Sample> {
    vec![
        field("u8", 0x81u8),
        field("u16", 0x8182u16),
        field("u32", 0x8182_8384u32),
        field("u64", 0x8182_8384_8586_8788u64),
        field("i8", -2i8),
        field("i16", -3i16),
        field("i32", -4i32),
        field("i64", -5i64),
        field("f32", 1.5f32),
        field("f64", -2.25f64),
        field("bool", true),
        field("array", [1u16, 2, 0xfffe]),
        field("array_of_bool", [true, false, true]),
        field("text", Text::from("gr\u{fc}n")),
        field("text_empty", Text::from("")),
        field("bytes", Bytes(vec![0, 255, 1])),
        field("ref", reference(5, 3)),
        field("ref_null", Ref::<Any>::NULL),
        field("list_of_numbers", List(vec![1u32, 2])),
        field("list_empty", List::<u64>(vec![])),
        field("list_of_refs", List(vec![reference(6, 0), Ref::NULL])),
        field("list_of_texts", List(vec![Text::from("a"), Text::from(""), Text::from("bc")])),
        field("list_of_lists", List(vec![List(vec![1u8]), List(vec![]), List(vec![2, 3])])),
        field("option_number", Some(9u32)),
        field("option_number_none", None::<u32>),
        field("option_text", Some(Text::from("t"))),
        field("option_text_none", None::<Text>),
        field("option_list_none", None::<List<u8>>),
        field("option_ref", Some(reference(7, 1))),
        field("option_ref_none", None::<Ref<Any>>),
        field("record", inner(1, "in")),
        field("option_record", Some(inner(2, "opt"))),
        field("option_record_none", None::<Inner>),
        field("list_of_records", List(vec![inner(3, "x"), inner(4, "")])),
        field("list_of_options", List(vec![Some(5u16), None])),
        field("bytes_spilled", Bytes(vec![7; SPILL_BYTES + 1])),
        field("refs_spilled", List(vec![reference(8, 2); SPILL_BYTES / 4 + 1])),
    ]
}

/// One of several records, or none of them.
enum Either {
    Nothing,
    Small(u8),
    Large { text: Text, to: Ref<Any> },
}

const EITHER: Schema = Schema {
    name: "golden.Either",
    fields: &[
        TAG,
        Field { name: "Nothing", ty: Type::Record(&Schema { name: "Nothing", fields: &[] }) },
        Field {
            name: "Small",
            ty: Type::Record(&Schema {
                name: "Small",
                fields: &[Field { name: "0", ty: Type::Scalar(Scalar::U8) }],
            }),
        },
        Field {
            name: "Large",
            ty: Type::Record(&Schema {
                name: "Large",
                fields: &[Field { name: "text", ty: Type::Text }, Field { name: "to", ty: Type::Ref("") }],
            }),
        },
    ],
};

impl Value for Either {
    const TYPE: Type = Type::Enum(&EITHER);
    fn put(&self, e: &mut Encoder<'_>, at: usize) {
        match self {
            Either::Nothing => e.set(at, &[0]),
            Either::Small(n) => {
                e.set(at, &[1]);
                n.put(e, at + EITHER.offset_in(1, 0));
            }
            Either::Large { text, to } => {
                e.set(at, &[2]);
                text.put(e, at + EITHER.offset_in(2, 0));
                to.put(e, at + EITHER.offset_in(2, 1));
            }
        }
    }
}

/// Fields of shapes that came later. Those of `golden.All` stay what they were.
fn later_fields() -> Vec<Sample> {
    let large = || Either::Large { text: "t".into(), to: reference(9, 1) };
    vec![
        field("enum_first", Either::Nothing),
        field("enum_small", Either::Small(7)),
        field("enum_large", large()),
        field("option_enum", Some(Either::Nothing)),
        field("option_enum_none", None::<Either>),
        field("list_of_enums", List(vec![large(), Either::Nothing, Either::Small(8)])),
    ]
}

/// Fields of shapes that came later still.
fn latest_fields() -> Vec<Sample> {
    let token = Token {
        space: SpaceId(0x0102_0304_0506_0708),
        view: ViewId::new(9, 0x0a0b_0c0d),
        stamp: Stamp(0x0e0f_1011),
    };
    let far = Far::<Any>::new(token, oref(5, 3));
    vec![
        field("far", far),
        field("far_null", Far::<Any>::NULL),
        field("option_far", Some(far)),
        field("list_of_fars", List(vec![far, Far::NULL])),
    ]
}

/// Trees of chunks are at 900.1 and 900.2.
struct Trees;

impl Spill for Trees {
    fn bytes(&mut self, _: &[u8]) -> Result<Oref, EncodeError> {
        Ok(oref(900, 1))
    }
    fn refs(&mut self, _: &[Oref]) -> Result<Oref, EncodeError> {
        Ok(oref(900, 2))
    }
}

#[test]
fn every_shape_of_field_has_the_bytes_of_version_1() {
    let mut promised = Promises::read(include_str!("../golden/records_v1.txt"));
    for (name, put, ty) in fields().into_iter().chain(later_fields()).chain(latest_fields()) {
        // A number before it shows the alignment, and one behind it where the fixed part goes on.
        let fields = vec![
            Field { name: "before", ty: Type::Scalar(Scalar::U8) },
            Field { name: "value", ty },
            Field { name: "after", ty: Type::Scalar(Scalar::U8) },
        ];
        let schema = Schema { name: "golden.One", fields: forever(fields) };
        let mut trees = Trees;
        let mut e = Encoder::new(schema.size(), &mut trees);
        0xaau8.put(&mut e, schema.offset(0));
        put(&mut e, schema.offset(1));
        0xbbu8.put(&mut e, schema.offset(2));
        let object = promised.keep(name, &e.finish(ClassId(0x1234)).unwrap());
        let layout = Layout::of(&schema);
        layout.check(&object[HEADER_BYTES..]).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(
            object.len(),
            (HEADER_BYTES + layout.used(&object[HEADER_BYTES..])).next_multiple_of(4).max(8)
        );
    }
    promised.end();
}

#[test]
fn parts_stand_behind_the_fixed_part_in_the_order_of_the_fields() {
    let mut promised = Promises::read(include_str!("../golden/record_v1.txt"));
    let all = fields();
    let schema = Schema {
        name: "golden.All",
        fields: forever(all.iter().map(|(name, _, ty)| Field { name, ty: *ty }).collect()),
    };
    let mut trees = Trees;
    let mut e = Encoder::new(schema.size(), &mut trees);
    for (i, (_, put, _)) in all.into_iter().enumerate() {
        put(&mut e, schema.offset(i));
    }
    let object = promised.keep("all", &e.finish(ClassId(16)).unwrap());
    promised.end();

    let (layout, body) = (Layout::of(&schema), &object[HEADER_BYTES..]);
    layout.check(body).unwrap();
    let at = |name: &str| layout.field(name).unwrap().at;
    let Var::Here { at: text, len } = var(body, at("text")) else { panic!("the text is in the record") };
    assert_eq!(&body[text..text + len], "gr\u{fc}n".as_bytes());
    assert!(matches!(var(body, at("bytes_spilled")), Var::Spilled { len, .. } if len == SPILL_BYTES + 1));
    let mut found = vec![];
    layout.refs(body, |at| found.push(Oref::from_raw(le32(body, at)).unwrap()));
    found.retain(|r| !r.is_null());
    found.sort();
    assert_eq!(found, [oref(5, 3), oref(6, 0), oref(7, 1), oref(900, 1), oref(900, 2)]);
}

// Classes.

#[test]
fn classes_have_the_bytes_of_version_1() {
    let mut promised = Promises::read(include_str!("../golden/classes_v1.txt"));
    let all = fields();
    let schema = Schema {
        name: "golden.All",
        fields: forever(all.iter().map(|(name, _, ty)| Field { name, ty: *ty }).collect()),
    };
    let named = Schema { name: "golden.Named", fields: &[Field { name: "to", ty: Type::Ref("golden.All") }] };
    let later = Schema {
        name: "golden.Later",
        fields: forever(later_fields().iter().map(|(name, _, ty)| Field { name, ty: *ty }).collect()),
    };
    let latest = Schema {
        name: "golden.Latest",
        fields: forever(latest_fields().iter().map(|(name, _, ty)| Field { name, ty: *ty }).collect()),
    };
    let written_ones = [schema, named, later, latest].map(|s| (s.name.to_owned(), Layout::of(&s)));
    let built_in = class::built_in().map(|(id, layout)| (format!("{}:{}", id.0, layout.name()), layout));
    for (name, layout) in written_ones.into_iter().chain(built_in) {
        let bytes = promised.keep(&name, &written(|o| layout.encode(o)));
        assert_eq!(Layout::decode(&bytes), Ok(layout));
    }
    promised.end();
}

// Pages.

#[test]
fn a_page_has_the_bytes_of_version_2() {
    let object = |n: u8, words: usize| {
        let mut no = NoSpill;
        let mut e = Encoder::new(4 * words, &mut no);
        (0..4 * words).for_each(|at| e.set(at, &[n]));
        e.finish(ClassId(16 + u16::from(n))).unwrap()
    };
    let (small, large) = (object(1, 1), object(2, 30));
    let mut builder = PageBuilder::new(Vec::new(), page_id(0x2a_bc), SpaceId(0x1122_3344_5566_7788));
    builder = builder.born(Stamp(0x0102_0304_0505));
    // Slots 1, 2 and 4 to 6 are empty: passed over, and kept from being used again.
    assert!(builder.push(0, &small) && builder.push(3, &large));
    builder.reserve_slots(7);
    let bytes = builder.finish(Stamp(0x0102_0304_0506));
    let golden = include_bytes!("../golden/page_v2.bin");
    let differs = bytes.iter().zip(golden).position(|(a, b)| a != b);
    assert!(bytes == golden, "byte {differs:?} of a page changed: {CHANGED}");

    let page = Page::parse(golden, page_id(0x2a_bc)).unwrap();
    assert_eq!((page.slots(), page.stamp()), (7, Stamp(0x0102_0304_0506)));
    assert_eq!(page.birth(), Stamp(0x0102_0304_0505));
    assert_eq!(page.objects().collect::<Vec<_>>(), [(0, &small[..]), (3, &large[..])]);
}

// Frames and messages.

fn header(kind: Kind) -> Header {
    Header {
        stamp: Stamp(0x2122_2324_2526_2728),
        ack: Stamp(0x3132_3334_3536_3738),
        view: ViewId::new(0x4142_4344, 0x5152_5354),
        deadline_us: 0x5152_5354,
        capabilities: 0x6162_6364,
        credit: 0x7172,
        ..Header::new(kind, 0x1112_1314_1516_1718)
    }
}

#[test]
fn frames_have_the_bytes_of_version_4() {
    let mut promised = Promises::read(include_str!("../golden/frames_v4.txt"));
    for (name, kind, body) in [
        ("header", Kind::Commit, &b""[..]),
        ("with_body", Kind::Stream, b"body"),
        ("page_without_sum", Kind::Page, b"page"),
    ] {
        let bytes = promised.keep(name, &written(|o| frame::encode(header(kind), body, o)));
        let mut deframer = Deframer::default();
        deframer.push(&bytes);
        let (read, found) = deframer.next_frame().unwrap().unwrap();
        let sum = (name == "with_body").then(|| crc32fast::hash(body));
        assert_eq!(read, Header { body_bytes: body.len() as u32, body_sum: sum, ..header(kind) });
        assert_eq!(found, body);
    }
    // A large call that leaves no host has no checksum.
    let header = Header { capabilities: frame::ONE_HOST, ..header(Kind::Request) };
    let bytes = written(|o| frame::encode(header, &[7; frame::UNSUMMED_BYTES], o));
    promised.keep("large_call_on_one_host", &bytes[..frame::FRAME_BYTES]);
    promised.end();
}

const GIVES: Schema =
    Schema { name: "gives", fields: &[Field { name: "cents", ty: Type::Scalar(Scalar::I64) }] };
const NO_FIELDS: PayloadSchema = PayloadSchema::of(Schema { name: "nothing", fields: &[] });
const PAY: MethodSchema = MethodSchema {
    name: "pay",
    reads: false,
    mode: Mode::Plain,
    takes: PayloadSchema::of(INNER),
    gives: PayloadSchema::of(GIVES),
    fails: NO_FIELDS,
    input: NO_ITEMS,
    output: NO_ITEMS,
};
const ACCOUNT: InterfaceSchema = InterfaceSchema {
    name: "golden.Account",
    methods: &[PAY, MethodSchema { name: "balance", reads: true, takes: NO_FIELDS, ..PAY }],
};

const BELL: InterfaceSchema = InterfaceSchema {
    name: "golden.Bell",
    methods: &[
        MethodSchema { name: "ring", mode: Mode::OneWay, gives: NO_FIELDS, ..PAY },
        MethodSchema { name: "tune", mode: Mode::Slow, reads: true, ..PAY },
    ],
};

const BANK: InterfaceSchema = InterfaceSchema {
    name: "golden.Bank",
    methods: &[MethodSchema { name: "transfer", mode: Mode::Once, ..PAY }],
};

const FEED: InterfaceSchema = InterfaceSchema {
    name: "golden.Feed",
    methods: &[
        MethodSchema { name: "prices", mode: Mode::Slow, output: GIVES, ..PAY },
        MethodSchema { name: "upload", mode: Mode::Slow, input: INNER, ..PAY },
    ],
};

fn interface() -> Interface {
    Interface::of(&ACCOUNT, "golden.Purse")
}

/// Keeps the promise of a message and reads what was promised.
macro_rules! message {
    ($promised:ident, $name:expr, $side:ident::$kind:ident, $value:expr) => {{
        let value = $side::$kind($value);
        let bytes = $promised.0.keep($name, &written(|o| value.encode(o)));
        assert_eq!($side::decode(Kind::$kind, &bytes).as_ref(), Ok(&value), "{}", $name);
        $promised.1.push(Kind::$kind);
    }};
}

#[test]
fn messages_have_the_bytes_of_version_4() {
    let mut promised = (Promises::read(include_str!("../golden/messages_v4.txt")), Vec::new());
    let op = OpId {
        client: ClientId(0x0102_0304_0506_0708),
        slot: 0x0112,
        seq: 0x2122_2324_2526_2728,
        view: ViewId::new(9, 0x0a0b_0c0d),
    };
    let pages = vec![(page_id(2), 3), (PageId::MAX, u64::MAX)];
    let hello = Hello {
        client: ClientId(0x0102_0304_0506_0708),
        connection: 2,
        version_min: 1,
        version_max: 3,
        space: SpaceId(0x1112_1314_1516_1718),
        resume: None,
        via: None,
    };
    let resume =
        Resume { view: ViewId::new(4, 0), watermark: Stamp(5), heard: Stamp(6), pages: pages.clone() };
    message!(promised, "ping", FromClient::Ping, Ping { of: None });
    let token = Token { space: SpaceId(0x1112_1314_1516_1718), view: ViewId::new(4, 5), stamp: Stamp(6) };
    message!(promised, "ping_of", FromClient::Ping, Ping { of: Some(token) });
    message!(promised, "pong", FromServer::Pong, Pong { nearly_full: true, held: None });
    let of = |objects| Some(Held { upto: Stamp(7), decider: SpaceId(0x5ace), objects });
    let held = of(Some(vec![(oref(3, 1), Stamp(6)), (oref(4, 2), Stamp(7))]));
    message!(promised, "pong_held", FromServer::Pong, Pong { nearly_full: false, held });
    message!(promised, "pong_all", FromServer::Pong, Pong { nearly_full: false, held: of(None) });
    let health = Health {
        state: HealthState::Draining,
        up_us: 0x0102_0304_0506,
        calls: 7,
        reason: "it is about to stop".into(),
    };
    message!(promised, "health", FromServer::Health, health);
    message!(promised, "hello", FromClient::Hello, hello.clone());
    message!(promised, "hello_via", FromClient::Hello, Hello { via: Some(Via::Replica), ..hello.clone() });
    message!(promised, "hello_resume", FromClient::Hello, Hello { resume: Some(resume), ..hello });
    message!(
        promised,
        "welcome",
        FromServer::Welcome,
        Welcome {
            version: 1,
            space: SpaceId(2),
            view: ViewId::new(3, 0),
            watermark: Stamp(4),
            resumed: true,
            places: true,
            keepalive_ms: 5,
            credit: 6,
            credit_bytes: 0x0708_090a,
            transaction_bytes_max: 7,
            page_bytes: 8,
            servers: vec!["a:1".into(), "b:2".into()],
        }
    );
    let fetch = Fetch { page: page_id(0x0a_0b0c), fetch: 0x0102_0304, since: None };
    message!(promised, "fetch", FromClient::Fetch, fetch.clone());
    message!(
        promised,
        "fetch_if_changed",
        FromClient::Fetch,
        Fetch { since: Some(Stamp(0x0506_0708)), ..fetch }
    );
    let Fetch { page, fetch, .. } = fetch;
    message!(promised, "page", FromServer::Page, PageReply { page, fetch, bytes: b"the page" });
    message!(promised, "page_unwritten", FromServer::Page, PageReply { page, fetch, bytes: b"" });
    message!(promised, "unchanged", FromServer::Unchanged, Unchanged { page, fetch });
    message!(promised, "collect", FromClient::Collect, Collect { is_dry: true });
    message!(promised, "bind", FromClient::Bind, Bind { interface: interface() });
    message!(
        promised,
        "bound",
        FromServer::Bound,
        Bound { interface: Some(2), methods: vec![1.into(), 0.into()], table: None }
    );
    message!(
        promised,
        "bound_nowhere",
        FromServer::Bound,
        Bound { interface: None, methods: vec![], table: None }
    );
    message!(promised, "bind_service", FromClient::Bind, Bind { interface: Interface::of_service(&BELL) });
    message!(promised, "bind_once", FromClient::Bind, Bind { interface: Interface::of_service(&BANK) });
    message!(promised, "bind_streams", FromClient::Bind, Bind { interface: Interface::of_service(&FEED) });
    let table = Some(0x0102_0304);
    message!(
        promised,
        "bound_service",
        FromServer::Bound,
        Bound { interface: Some(2), methods: vec![1.into(), 0.into()], table }
    );
    let refused = Numbered { number: 0, refused: Some("why".into()) };
    message!(
        promised,
        "bound_refused",
        FromServer::Bound,
        Bound { interface: Some(2), methods: vec![1.into(), refused], table }
    );
    let request = Request {
        slot: Some(3),
        seq: 0x2122_2324_2526_2728,
        again: false,
        interface: 2,
        method: 1,
        object: None,
        key: &[],
        payload: b"what it takes",
    };
    message!(promised, "request", FromClient::Request, request);
    message!(promised, "request_again", FromClient::Request, Request { again: true, ..request });
    message!(promised, "request_one_way", FromClient::Request, Request { slot: None, ..request });
    message!(promised, "request_keyed", FromClient::Request, Request { key: b"order 4711", ..request });
    let object = Some((oref(7, 2), Stamp(41)));
    message!(promised, "request_object", FromClient::Request, Request { slot: None, object, ..request });
    message!(
        promised,
        "request_operation",
        FromClient::Request,
        Request { slot: Some(0x0301), object, ..request }
    );
    message!(
        promised,
        "request_operation_keyed",
        FromClient::Request,
        Request { slot: Some(0x0301), object, key: b"order 4711", ..request }
    );
    message!(promised, "cancel", FromClient::Cancel, Cancel { slot: 3, seq: 9 });
    message!(promised, "datagrams", FromClient::Datagrams, Datagrams { connection: 0x0102_0304_0506_0708 });
    message!(
        promised,
        "item",
        FromClient::InputItem,
        Item { slot: 3, seq: 9, ordinal: 0x0102, payload: b"an item" }
    );
    message!(
        promised,
        "output_item",
        FromServer::OutputItem,
        Item { slot: 3, seq: 9, ordinal: 0x0102, payload: b"an item" }
    );
    message!(promised, "credit", FromClient::OutputCredit, Credit { slot: 3, seq: 9, bytes: 0x0102_0304 });
    message!(
        promised,
        "input_credit",
        FromServer::InputCredit,
        Credit { slot: 3, seq: 9, bytes: 0x0102_0304 }
    );
    message!(promised, "input_end", FromClient::InputEnd, InputEnd { slot: 3, seq: 9, items: 0x0102 });
    let (group, member) = (0x0102_0304_0506_0708, MemberId(0x1112_1314_1516_1718));
    let join = Join { group, space: SpaceId(0x2122), member, start: 3, version: 1, opening: None };
    message!(promised, "join", FromClient::Join, join.clone());
    let opening = Opening { process: 0x3132, nonce: [0x41; 32], earlier: None };
    let join = Join { opening: Some(opening.clone()), ..join };
    message!(promised, "join_to_be_proven", FromClient::Join, join.clone());
    let opening = Some(Opening { earlier: Some(vec![(0x7172, 0x8182)]), ..opening });
    message!(promised, "join_after_earlier_starts", FromClient::Join, Join { opening, ..join });
    let (nonce, proof) = ([0x51; 32], [0x61; 32]);
    message!(
        promised,
        "challenge",
        FromServer::Challenge,
        Challenge { group, member, start: 4, nonce, proof, drawn: None }
    );
    message!(
        promised,
        "challenge_of_a_member",
        FromServer::Challenge,
        Challenge { group, member, start: 4, nonce, proof, drawn: Some((0x9192, vec![(3, 0xa1a2)])) }
    );
    message!(promised, "prove", FromClient::Prove, Prove { proof });
    message!(promised, "proven", FromServer::Proven, Nothing);
    message!(promised, "packet", FromClient::Packet, Packet { bytes: b"as the order says" });
    for (name, end) in [
        ("response_returned", ResponseEnd::Returned(Stamp(41), b"what it gives")),
        ("response_failed", ResponseEnd::Failed(Stamp::ZERO, b"why")),
        ("response_broken", ResponseEnd::Broken(Stamp(41), "it has panicked")),
        ("response_unknown", ResponseEnd::FORGOTTEN),
        ("response_busy", ResponseEnd::Refused(Refusal::FULL, "too many")),
    ] {
        message!(promised, name, FromServer::Response, Response { slot: 3, seq: 9, end });
    }
    let end = ResponseEnd::Returned(Stamp(41), b"what it gives");
    for (name, slot) in [("response_operation", OPERATION | 0x0301), ("response_object", OBJECT_SLOT)] {
        message!(promised, name, FromServer::Response, Response { slot, seq: 9, end });
    }
    message!(promised, "unsubscribe", FromClient::Unsubscribe, Unsubscribe { pages: pages.clone() });
    message!(promised, "part", FromClient::Part, Part { op, index: 7, bytes: b"piece" });
    message!(promised, "commit", FromClient::Commit, Commit { op, parts: 2, bytes: b"the rest" });
    let effects = CommitEffects {
        base: Stamp(6),
        reads: vec![oref(2, 1), oref(3, 511)],
        writes: vec![
            Write { oref: oref(2, 1), new: false, object: &[16, 0, 0, 0, 1, 2, 3, 4] },
            Write { oref: oref(9, 0), new: true, object: &[17, 0, 0, 0, 5, 6, 7, 8, 9, 10, 11, 12] },
        ],
    };
    let bytes = promised.0.keep("effects", &written(|o| effects.encode(o)));
    assert_eq!(CommitEffects::decode(&bytes), Ok(effects));
    message!(promised, "resolve", FromClient::Resolve, Resolve { op });
    message!(
        promised,
        "verdict_committed",
        FromServer::Verdict,
        Verdict { op, outcome: Ok(Stamp(0x0102_0304_0506_0708)) }
    );
    for refusal in Refusal::ALL {
        let name = format!("verdict_{refusal:?}").to_lowercase();
        let name = name.split('(').next().unwrap();
        message!(promised, name, FromServer::Verdict, Verdict { op, outcome: Err(refusal) });
    }
    for (name, refusal) in [
        ("verdict_conflict_object", Refusal::Conflict(oref(2, 1))),
        ("verdict_full_transaction", Refusal::Full(Limit::Transaction)),
        ("verdict_full_disk", Refusal::Full(Limit::Disk)),
        ("verdict_full_pages", Refusal::Full(Limit::Pages)),
        ("verdict_full_named", Refusal::FULL),
        ("verdict_invalid_object", Refusal::Invalid(oref(3, 4))),
        ("verdict_nowhere_object", Refusal::Nowhere(oref(3, 4))),
    ] {
        message!(promised, name, FromServer::Verdict, Verdict { op, outcome: Err(refusal) });
    }
    message!(
        promised,
        "stream",
        FromServer::Stream,
        Stream {
            from: Stamp(1),
            to: Stamp(9),
            changes: vec![
                Change { stamp: Stamp(3), own: None, orefs: vec![oref(2, 1), oref(2, 2)] },
                Change { stamp: Stamp(9), own: Some(op), orefs: vec![] },
            ],
            revoked: pages,
            ack: true,
        }
    );
    let hole = Hole { page: PageId::new(0x0506).unwrap(), from: 0x0102, used: 0x0304 };
    message!(
        promised,
        "lease",
        FromClient::Lease,
        Lease { seq: 0x0304, pages: 0x0102, done: vec![(PageId::new(0x0506).unwrap(), 0x0102)] }
    );
    let pages = vec![page_id(5), PageId::MAX];
    message!(
        promised,
        "leased",
        FromServer::Leased,
        Leased { seq: 0x0304, birth: Stamp(0x0203), pages, holes: vec![hole] }
    );
    let layout = Layout::of(&INNER);
    message!(promised, "define", FromClient::Define, layout.clone());
    message!(promised, "defined", FromServer::Defined, Defined { class: ClassId(0x1234) });
    message!(promised, "status", FromServer::Status, Status { json: b"{}" });
    let interfaces = vec![interface(), Interface::of_service(&BELL)];
    message!(promised, "offered", FromServer::Offered, Offered { interfaces });
    message!(
        promised,
        "classes",
        FromServer::Classes,
        Classes { classes: vec![(ClassId(16), layout), (ClassId(0x1234), Layout::new("C".into(), vec![]))] }
    );
    for (name, reason) in [("refused_schema", Refusal::Schema), ("refused_full", Refusal::FULL)] {
        let refused = Refused { reason, text: "why".into(), servers: vec![] };
        message!(promised, name, FromServer::Refused, refused);
    }
    let (reason, servers) = (Refusal::NotLeader, vec!["a:1".into(), "b:2".into()]);
    let refused = Refused { reason, text: "why".into(), servers };
    message!(promised, "refused_not_leader", FromServer::Refused, refused);
    let (step, member) = (Regrouping::Learn, MemberId(0x1112_1314_1516_1718));
    message!(promised, "regroup", FromClient::Regroup, Regroup { step, member, address: "a:1".into() });
    let (group, space) = (0x2122_2324_2526_2728, SpaceId(0x3132_3334_3536_3738));
    let grouped = Grouped { group, space, view_first: 0x0102_0304, members: b"list" };
    message!(promised, "grouped", FromServer::Grouped, grouped);
    message!(promised, "transfer", FromClient::Transfer, Transfer { group, member });
    let servers = vec!["a:1".into(), "b:2".into()];
    message!(promised, "addresses", FromServer::Addresses, Addresses { servers });
    let mut on = Vector::default();
    on.add(space, Seen { done: Stamp(5), ..Seen::at(ViewId::new(9, 0x0a0b_0c0d), Stamp(0x0102_0304)) });
    message!(promised, "depend", FromClient::Depend, Depend { on: on.clone() });
    message!(promised, "dependencies", FromServer::Dependencies, Dependencies { on: on.clone() });
    let prepare = Prepare { op, of: op, coordinator: space, seen: on.clone(), bytes: b"part" };
    message!(promised, "prepare", FromClient::Prepare, prepare);
    let parts = vec![Prepared { space, view: op.view, at: Stamp(0x0506), writes: true }];
    let decide = Decide { op, parts, seen: on.clone(), bytes: b"part" };
    message!(promised, "decide", FromClient::Decide, decide);
    for (name, seen) in [("settle_committed", Some(on.clone())), ("settle_aborted", None)] {
        let settle = Settle { of: op, coordinator: space, prepared: Stamp(0x0506), seen, view: None };
        message!(promised, name, FromClient::Settle, settle);
    }
    let view = Some(op.view);
    let settle = Settle { of: op, coordinator: space, prepared: Stamp(0x0506), seen: None, view };
    message!(promised, "settle_of_view", FromClient::Settle, settle);
    message!(promised, "inquire", FromClient::Inquire, Inquire { of: op });
    message!(
        promised,
        "await_settled",
        FromClient::AwaitSettled,
        AwaitSettled { upto: Stamp(0x0506), of: None }
    );
    let named = AwaitSettled { upto: Stamp(0x0506), of: Some(Awaited::AllButNamed) };
    message!(promised, "await_settled_named", FromClient::AwaitSettled, named);
    for decision in Decision::ALL {
        let name = format!("decided_{decision:?}").to_lowercase();
        message!(promised, &name, FromServer::Decided, Decided { decision: *decision, seen: on.clone() });
    }
    message!(promised, "settled", FromServer::Settled, Nothing);
    message!(promised, "settled_upto", FromServer::SettledUpto, SettledUpto { held: None });
    message!(promised, "settled_but_held", FromServer::SettledUpto, SettledUpto { held: of(None) });
    let begun = BackupBegun {
        stamp: Stamp(0x2122_2324_2526_2728),
        view: ViewId::new(0x4142_4344, 0x5152_5354),
        pages_end: 0x0031_3233,
        state_bytes: 0x5152_5354,
    };
    message!(promised, "backup_begun", FromServer::BackupBegun, begun);
    let BackupBegun { stamp, view, pages_end, state_bytes } = begun;
    let (replay_from, before_view) = (Stamp(0x2122_2324_2526_2721), ViewId::new(0x4142_4343, 0x5152_5353));
    let before = 0x6162_6364_6566_6768;
    let begun = TransferBegun { stamp, view, pages_end, state_bytes, replay_from, before_view, before };
    message!(promised, "transfer_begun", FromServer::TransferBegun, begun);
    message!(promised, "follow_log", FromClient::FollowLog, FollowLog { after: 0x0102_0304_0506_0708 });
    let followed = LogFollowed { stamp, view, position: 0x0102_0304_0506_0708, stable: before };
    message!(promised, "log_followed", FromServer::LogFollowed, followed);
    message!(promised, "backup_log", FromServer::BackupPart, BackupPart::Log(b"entries"));
    message!(promised, "backup_state", FromServer::BackupPart, BackupPart::State(b"piece"));
    message!(
        promised,
        "backup_no_pages",
        FromServer::BackupPart,
        BackupPart::Pages { upto: 0x0102_0304, pages: b"" }
    );
    message!(
        promised,
        "backup_end",
        FromServer::BackupPart,
        BackupPart::End { pages: 0x0102_0304_0506_0708 }
    );
    let who = Principal::client("anna").unwrap();
    let right = |who: &Principal, role| Right { who: who.clone(), role };
    let granted = right(&who, Role::Write("golden.Purse".into()));
    for (name, step, right) in [
        ("access_whoami", Accessing::Whoami, None),
        ("access_list", Accessing::List, None),
        ("access_grant", Accessing::Grant, Some(granted.clone())),
        ("access_revoke", Accessing::Revoke, Some(right(&Principal::Anyone, Role::Read))),
    ] {
        message!(promised, name, FromClient::Access, Access { step, right });
    }
    message!(promised, "on_behalf", FromClient::OnBehalf, OnBehalf { who: Principal::Uid(1_000) });
    let roles = vec![Role::Read, Role::Define, Role::Backup, Role::Operate, Role::Grant];
    let call = right(&Principal::member("a-1").unwrap(), Role::Call("golden.Feed.prices".into()));
    let rights = vec![granted, call];
    let accessed = Accessed { who: Principal::Uid(0), roles, is_judged: true, rights };
    message!(promised, "accessed", FromServer::Accessed, accessed);
    // Those without a line here have no body.
    for kind in Kind::ALL.iter().filter(|kind| !promised.1.contains(kind)) {
        let read = |body| (FromClient::decode(*kind, body).is_ok(), FromServer::decode(*kind, body).is_ok());
        assert_ne!(read(&[]), (false, false), "{kind:?} has no bytes that were promised");
        assert_eq!(read(&[0]), (false, false), "{kind:?} has no bytes that were promised");
    }
    promised.0.end();
}

#[test]
fn answers_are_known_by_their_rows() {
    assert!(Kind::Verdict.is_answer() && Kind::Dependencies.is_answer());
    assert!(!Kind::Stream.is_answer() && !Kind::OutputItem.is_answer() && !Kind::Fetch.is_answer());
}

/// The table of messages in the formats' page, which promises the numbers of the kinds.
#[test]
fn table_of_messages_is_that_of_the_formats_page() {
    let mut table =
        String::from("| kind | name | body | what it is | answered by |\n|---|---|---|---|---|\n");
    for (kind, _, body, what) in ROWS {
        let answers = kind.answers().iter().map(|kind| format!("{kind:?}")).collect::<Vec<_>>().join(", ");
        table += &format!("| {} | {kind:?} |{}| {} | {answers} |\n", kind.number(), code(body), plain(what));
    }
    table += "\n| part | fields |\n|---|---|\n";
    PARTS.iter().for_each(|(name, fields)| table += &format!("| {name} |{}|\n", code(fields)));
    let page = include_str!("../../../docs/formats.md");
    assert!(page.contains(&table), "the page is to say:\n{table}");
}

fn code(body: &str) -> String {
    if body.is_empty() { " ".into() } else { format!(" `{}` ", plain(body)) }
}

/// Without what only Rust and its documentation need.
fn plain(text: &str) -> String {
    text.replace("&'a [u8]", "rest")
        .replace("<'a>", "")
        .replace(['[', ']', '`'], "")
        .trim_matches([',', ' '])
        .into()
}

#[test]
fn header_names_every_kind_by_its_number() {
    for number in 0..=u8::MAX {
        let head = Header::new(Kind::of(number), 1).encode();
        let kind = Header::decode(&head).unwrap().kind;
        assert_eq!((head[6], kind, kind.number()), (number, Kind::of(number), number));
    }
}
