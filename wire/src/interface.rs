//! Interfaces: the methods of objects of a class, or the procedures of a service. Each method has the layouts
//! of its arguments and results.
//!
//! `#[interface]` and `#[service]` write the constants, both ends of a connection have them, and they are
//! compared once for each connection: a method whose layouts are equal at both ends is called by its number,
//! with bytes that are read where they are. Where they differ as versions of a class do, the server converts;
//! any other method is refused by its name ([`Interface::fit`]).

use crate::cursor::{DecodeError, Put, Reader};
use crate::layout::{Layout, NAME_BYTES_MAX};
use crate::payload::PayloadSchema;
use crate::schema::Schema;

/// Methods of one interface.
pub const METHODS_MAX: usize = 256;

/// An interface, as a constant of a program.
#[derive(Debug, Clone, Copy)]
pub struct InterfaceSchema {
    /// The name of the interface.
    pub name: &'static str,
    /// The methods, in order.
    pub methods: &'static [MethodSchema],
}

/// A method, as a constant of a program.
#[derive(Debug, Clone, Copy)]
pub struct MethodSchema {
    /// The name of the method.
    pub name: &'static str,
    /// Set for a method that only reads. The server may execute such a procedure of a service more than once.
    pub reads: bool,
    /// The thread on which the server runs the method, and whether it answers.
    pub mode: Mode,
    /// The arguments, one field each.
    pub takes: PayloadSchema,
    /// The result: one field, or none.
    pub gives: PayloadSchema,
    /// The error that the method itself returns: one field, or none if it never fails by its own decision.
    pub fails: PayloadSchema,
    /// An item of the stream that it takes; no field if it takes none.
    pub input: Schema,
    /// An item of the stream that it gives; no field if it gives none.
    pub output: Schema,
}

/// The way in which a server runs a method. Methods of objects are all [`Mode::Plain`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// Where the requests are taken in, and answered.
    #[default]
    Plain,
    /// On a thread of its own, and answered.
    Slow,
    /// Where the requests are taken in, and never answered.
    OneWay,
    /// On a thread of its own, and never answered.
    SlowOneWay,
    /// On a thread of its own, answered, and called with a key under which it has one effect: a caller that
    /// does not know what became of it calls again.
    Once,
}

impl Mode {
    /// Says whether calls are never answered.
    pub fn is_one_way(self) -> bool {
        matches!(self, Mode::OneWay | Mode::SlowOneWay)
    }

    /// Says whether the method runs on a thread of its own.
    pub fn is_slow(self) -> bool {
        matches!(self, Mode::Slow | Mode::SlowOneWay | Mode::Once)
    }

    /// The bits of the mode of a method.
    fn bits(self) -> u8 {
        match self {
            Mode::Plain => 0,
            Mode::Slow => SLOW,
            Mode::OneWay => ONE_WAY,
            Mode::SlowOneWay => SLOW | ONE_WAY,
            Mode::Once => SLOW | ONCE,
        }
    }

    /// The mode that the bits of a method say; none for bits of no mode.
    fn of(bits: u8) -> Option<Mode> {
        let modes = [Mode::Plain, Mode::Slow, Mode::OneWay, Mode::SlowOneWay, Mode::Once];
        modes.into_iter().find(|mode| mode.bits() == bits & (SLOW | ONE_WAY | ONCE))
    }
}

/// The interface that a class has, or a service, as it is compared and shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interface {
    /// The name of the interface.
    pub name: String,
    /// The class of the objects that have it; empty for a service, which has no objects.
    pub class: String,
    /// The methods, at most [`METHODS_MAX`]; their numbers are their places.
    pub methods: Vec<Method>,
}

/// A method.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Method {
    /// The name of the method.
    pub name: String,
    /// Set for a method that only reads.
    pub reads: bool,
    /// The thread on which the server runs the method, and whether it answers.
    pub mode: Mode,
    /// The layout of its arguments.
    pub takes: Layout,
    /// The layout of its result.
    pub gives: Layout,
    /// The layout of its error.
    pub fails: Layout,
    /// An item of the stream that it takes; no field if it takes none.
    pub input: Layout,
    /// An item of the stream that it gives; no field if it gives none.
    pub output: Layout,
}

impl Method {
    /// Says whether the method takes a stream.
    pub fn has_input(&self) -> bool {
        !self.input.fields().is_empty()
    }

    /// Says whether the method gives a stream.
    pub fn has_output(&self) -> bool {
        !self.output.fields().is_empty()
    }

    /// Says whether the method takes or gives a stream.
    pub fn has_streams(&self) -> bool {
        self.has_input() || self.has_output()
    }
}

impl Interface {
    /// The interface of a class of this program.
    pub fn of(schema: &InterfaceSchema, class: &str) -> Interface {
        let methods = schema.methods.iter().map(|m| Method {
            name: m.name.into(),
            reads: m.reads,
            mode: m.mode,
            takes: Layout::of(m.takes.record()),
            gives: Layout::of(m.gives.record()),
            fails: Layout::of(m.fails.record()),
            input: Layout::of(&m.input),
            output: Layout::of(&m.output),
        });
        Interface { name: schema.name.into(), class: class.into(), methods: methods.collect() }
    }

    /// The interface of a service of this program.
    pub fn of_service(schema: &InterfaceSchema) -> Interface {
        Interface::of(schema, "")
    }

    /// Says whether this is the interface of a service.
    pub fn is_service(&self) -> bool {
        self.class.is_empty()
    }

    /// Appends it.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.put_bytes(self.name.as_bytes());
        out.put_bytes(self.class.as_bytes());
        out.put_u32(self.methods.len() as u32);
        for m in &self.methods {
            out.put_bytes(m.name.as_bytes());
            let bit = |is: bool, bit: u8| if is { bit } else { 0 };
            out.put_u8(bit(m.reads, READS) | m.mode.bits() | bit(m.has_streams(), STREAMS));
            let layouts = [&m.takes, &m.gives, &m.fails, &m.input, &m.output];
            for layout in &layouts[..if m.has_streams() { 5 } else { 3 }] {
                let mut bytes = Vec::new();
                layout.encode(&mut bytes);
                out.put_bytes(&bytes);
            }
        }
    }

    /// Reads it off the front of a body.
    pub fn decode(r: &mut Reader<'_>) -> Result<Interface, DecodeError> {
        let name = name(r, "interface")?;
        let class = r.str("class")?;
        if class.len() > NAME_BYTES_MAX {
            return Err(DecodeError::BadField("class"));
        }
        let of_service = if class.is_empty() { ONE_WAY | SLOW | STREAMS | ONCE } else { 0 };
        let count = r.count(17, "methods")?;
        if count > METHODS_MAX {
            return Err(DecodeError::TooMany("methods"));
        }
        let methods = (0..count).map(|_| {
            let name = self::name(r, "method")?;
            let bits = r.u8()?;
            if bits & !(READS | of_service) != 0 {
                return Err(DecodeError::BadField("reads"));
            }
            let (reads, mode) = (bits & READS != 0, Mode::of(bits).ok_or(DecodeError::BadField("mode"))?);
            if mode == Mode::Once && reads {
                return Err(DecodeError::BadField("mode"));
            }
            let mut layout = || Layout::decode(r.bytes("layout")?);
            let (takes, gives, fails) = (layout()?, layout()?, layout()?);
            let has_streams = bits & STREAMS != 0;
            let (input, output) = if has_streams { (layout()?, layout()?) } else { (no_items(), no_items()) };
            let method = Method { name, reads, mode, takes, gives, fails, input, output };
            // A stream is of a call that runs for a while, is answered, and is sent once.
            if method.has_streams() != has_streams || (has_streams && (mode != Mode::Slow || reads)) {
                return Err(DecodeError::BadField("streams"));
            }
            Ok(method)
        });
        Ok(Interface { name, class: class.into(), methods: methods.collect::<Result<_, _>>()? })
    }

    /// Finds for each method of a caller's interface the way in which a server with this interface runs it.
    /// Both may have been built at different times: a method is found by its name, and what it takes and
    /// gives may differ as versions of a class do ([`Layout::fits`]).
    pub fn fit(&self, caller: &Interface) -> Vec<Fit> {
        caller.methods.iter().map(|m| self.fit_method(m).unwrap_or_else(Fit::Refused)).collect()
    }

    fn fit_method(&self, m: &Method) -> Result<Fit, String> {
        let of = || format!("method `{}` of interface `{}`", m.name, self.name);
        let at = self.methods.iter().position(|own| own.name == m.name).ok_or_else(|| {
            format!("interface `{}` has no method `{}` at the server: start a newer one", self.name, m.name)
        })?;
        let own = &self.methods[at];
        let differs =
            |what| Err(format!("{} {what} at the server than at the caller: {FROM_ONE_SOURCE}", of()));
        match () {
            () if own.reads != m.reads => return differs("is of another kind, `#[read]` or not,"),
            () if own.mode.is_one_way() != m.mode.is_one_way() => {
                return differs("is of another kind, `#[one_way]` or not,");
            }
            () if (own.mode == Mode::Once) != (m.mode == Mode::Once) => {
                return differs("is of another kind, `#[once]` or not,");
            }
            () if own.has_input() != m.has_input() => return differs("takes another stream"),
            () if own.has_output() != m.has_output() => return differs("gives another stream"),
            () => {}
        }
        // Of a result that is not there at all no empty one is made.
        let lacks = |to: &Layout, from: &Layout| {
            !to.fields().is_empty() && to.fields().iter().all(|p| from.field(&p.name).is_none())
        };
        if lacks(&m.gives, &own.gives) {
            return Err(format!("{} gives no such result at the server: start a newer one", of()));
        }
        if lacks(&own.fails, &m.fails) {
            return Err(format!("{} fails with an error at the server: build the caller anew", of()));
        }
        let (to_server, to_caller) = ("start a newer server", "build the caller anew");
        let ways = [
            ("argument", &own.takes, &m.takes, to_server),
            ("result", &m.gives, &own.gives, to_caller),
            ("error", &m.fails, &own.fails, to_caller),
            ("item of the input", &own.input, &m.input, to_server),
            ("item of the output", &m.output, &own.output, to_caller),
        ];
        let mut is_same = true;
        for (what, to, from, act) in ways {
            if to == from {
                continue;
            }
            is_same = false;
            to.fits(from).map_err(|misfit| {
                // The end that could read what the other one gives is the newer of both.
                let act = if from.fits(to).is_ok() { act } else { FROM_ONE_SOURCE };
                // The one field of a result, and of an error, is called so.
                let at = misfit.at.strip_prefix(what).map_or(&*misfit.at, |at| at.trim_start_matches('.'));
                let part = if at.is_empty() { what.into() } else { format!("{what} `{at}`") };
                format!("{part}: {}, of {}: {act}", misfit.what, of())
            })?;
        }
        Ok(if is_same { Fit::Same(at as u16) } else { Fit::Converts(at as u16) })
    }
}

/// The way in which a server runs a method of a caller that was built at another time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fit {
    /// By its number there: what it takes and gives is the same at both ends.
    Same(u16),
    /// By its number there: the server converts what it takes and gives.
    Converts(u16),
    /// Not at all, for this reason.
    Refused(String),
}

/// The advice where neither end can be said to be the newer one.
const FROM_ONE_SOURCE: &str = "build both from one source";

/// Bits of a method: it only reads; it is never answered; it runs on a thread of its own; it has streams, and
/// their layouts follow; it is called with a key.
const READS: u8 = 1;
const ONE_WAY: u8 = 2;
const SLOW: u8 = 4;
const STREAMS: u8 = 8;
const ONCE: u8 = 16;

/// The items of a stream that a method does not have.
pub const NO_ITEMS: Schema = Schema { name: "none", fields: &[] };

fn no_items() -> Layout {
    Layout::of(&NO_ITEMS)
}

fn name(r: &mut Reader<'_>, field: &'static str) -> Result<String, DecodeError> {
    let name = r.str(field)?;
    if name.is_empty() || name.len() > NAME_BYTES_MAX {
        Err(DecodeError::BadField(field))
    } else {
        Ok(name.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::{Field, Scalar, Type};

    const TAKES: Schema =
        Schema { name: "pay", fields: &[Field { name: "cents", ty: Type::Scalar(Scalar::I64) }] };
    const OTHER: Schema =
        Schema { name: "pay", fields: &[Field { name: "cents", ty: Type::Scalar(Scalar::U64) }] };
    const NOTHING: Schema = Schema { name: "nothing", fields: &[] };

    const fn method(name: &'static str, takes: Schema) -> MethodSchema {
        let takes = PayloadSchema::of(takes);
        let (gives, fails) = (PayloadSchema::of(NOTHING), PayloadSchema::of(NOTHING));
        MethodSchema {
            name,
            reads: false,
            mode: Mode::Plain,
            takes,
            gives,
            fails,
            input: NO_ITEMS,
            output: NO_ITEMS,
        }
    }

    const WHOLE: &[MethodSchema] = &[method("pay", TAKES), method("close", NOTHING)];
    const OLDER: &[MethodSchema] = &[method("close", NOTHING)];
    const CHANGED: &[MethodSchema] = &[method("pay", OTHER)];

    fn interface(methods: &'static [MethodSchema]) -> Interface {
        Interface::of(&InterfaceSchema { name: "Account", methods }, "Purse")
    }

    #[test]
    fn interface_comes_back_from_its_bytes() {
        let whole = interface(WHOLE);
        let mut bytes = Vec::new();
        whole.encode(&mut bytes);
        assert_eq!(Interface::decode(&mut Reader::new(&bytes)), Ok(whole));
        for end in 0..bytes.len() {
            assert!(Interface::decode(&mut Reader::new(&bytes[..end])).is_err(), "{end} bytes");
        }
    }

    #[test]
    fn once_is_a_mode_of_its_own() {
        const PAY: &[MethodSchema] = &[MethodSchema { mode: Mode::Once, ..method("pay", TAKES) }];
        let once = Interface::of_service(&InterfaceSchema { name: "Bank", methods: PAY });
        let mut bytes = Vec::new();
        once.encode(&mut bytes);
        assert_eq!(Interface::decode(&mut Reader::new(&bytes)), Ok(once.clone()));
        let mut slow = once.clone();
        slow.methods[0].mode = Mode::Slow;
        assert!(refusal(&once, &slow).contains("`#[once]` or not"));
        // No method is once and only reads, or is once and runs in the loop.
        let at = bytes.iter().position(|byte| *byte == SLOW | ONCE).expect("its bits");
        for bits in [SLOW | ONCE | READS, ONCE, ONCE | ONE_WAY, SLOW | ONCE | ONE_WAY] {
            bytes[at] = bits;
            assert_eq!(
                Interface::decode(&mut Reader::new(&bytes)),
                Err(DecodeError::BadField("mode")),
                "{bits}"
            );
        }
    }

    #[test]
    fn service_comes_back_and_methods_of_objects_have_no_modes() {
        const TELL: &[MethodSchema] =
            &[MethodSchema { mode: Mode::OneWay, ..method("tell", TAKES) }, method("close", NOTHING)];
        let schema = InterfaceSchema { name: "Bell", methods: TELL };
        let bytes = |interface: &Interface| {
            let mut bytes = Vec::new();
            interface.encode(&mut bytes);
            bytes
        };
        let service = Interface::of_service(&schema);
        assert!(service.is_service());
        assert_eq!(Interface::decode(&mut Reader::new(&bytes(&service))), Ok(service.clone()));
        let of_objects = bytes(&Interface::of(&schema, "Purse"));
        assert_eq!(Interface::decode(&mut Reader::new(&of_objects)), Err(DecodeError::BadField("reads")));
        let mut answers = service.clone();
        answers.methods[0].mode = Mode::Slow;
        let differs = refusal(&service, &answers);
        assert!(differs.contains("`tell`") && differs.contains("one_way"), "{differs}");
    }

    #[test]
    fn streams_come_back_and_are_compared() {
        const FEED: &[MethodSchema] = &[
            MethodSchema { mode: Mode::Slow, output: TAKES, ..method("prices", TAKES) },
            MethodSchema { mode: Mode::Slow, input: OTHER, ..method("upload", TAKES) },
        ];
        let service = Interface::of_service(&InterfaceSchema { name: "Feed", methods: FEED });
        let mut bytes = Vec::new();
        service.encode(&mut bytes);
        assert_eq!(Interface::decode(&mut Reader::new(&bytes)), Ok(service.clone()));
        for (change, text) in [
            (
                (|m: &mut Method| m.output = Layout::of(&OTHER)) as fn(&mut Method),
                "item of the output `cents`: `i64` cannot become `u64`",
            ),
            (|m| m.output = no_items(), "gives another stream"),
            (|m| m.input = Layout::of(&TAKES), "takes another stream"),
        ] {
            let mut other = service.clone();
            other.methods.iter_mut().take(1).for_each(change);
            let differs = refusal(&service, &other);
            assert!(differs.contains(text), "{differs}");
        }
        // Streams are of slow procedures that are executed at most once.
        for change in [
            (|m: &mut Method| m.mode = Mode::Plain) as fn(&mut Method),
            |m| m.mode = Mode::SlowOneWay,
            |m| m.reads = true,
        ] {
            let mut other = service.clone();
            other.methods.iter_mut().for_each(change);
            let mut bytes = Vec::new();
            other.encode(&mut bytes);
            let read = Interface::decode(&mut Reader::new(&bytes));
            assert_eq!(read, Err(DecodeError::BadField("streams")));
        }
    }

    /// The first reason for which a method is refused.
    fn refusal(server: &Interface, caller: &Interface) -> String {
        let refused = server.fit(caller).into_iter().find_map(|fit| match fit {
            Fit::Refused(why) => Some(why),
            Fit::Same(_) | Fit::Converts(_) => None,
        });
        refused.expect("a method is refused")
    }

    #[test]
    fn methods_are_found_by_name_and_refused_by_layout() {
        let server = interface(WHOLE);
        let older = interface(OLDER);
        assert_eq!(server.fit(&older), [Fit::Same(1)]);
        let missing = older.fit(&server);
        let [Fit::Refused(text), Fit::Same(0)] = &missing[..] else { panic!("{missing:?}") };
        assert!(text.contains("no method `pay`"), "{text}");
        let differs = refusal(&server, &interface(CHANGED));
        assert!(differs.contains("`pay`") && differs.contains("`u64` cannot become `i64`"), "{differs}");
    }

    const LINE: Schema =
        Schema { name: "Line", fields: &[Field { name: "cents", ty: Type::Scalar(Scalar::U32) }] };
    const WIDE_LINE: Schema = Schema {
        name: "Line",
        fields: &[
            Field { name: "note", ty: Type::Text },
            Field { name: "cents", ty: Type::Scalar(Scalar::I64) },
        ],
    };
    const LINES: Schema = Schema { name: "pay", fields: &[Field { name: "lines", ty: LIST }] };
    const LIST: Type = Type::List(&Type::Record(&LINE));
    const WIDE_LINES: Schema = Schema { name: "pay", fields: &[Field { name: "lines", ty: WIDE_LIST }] };
    const WIDE_LIST: Type = Type::List(&Type::Record(&WIDE_LINE));

    #[test]
    fn newer_end_is_told_from_the_older() {
        const NARROW: &[MethodSchema] = &[method("pay", LINES)];
        const WIDE: &[MethodSchema] = &[method("pay", WIDE_LINES)];
        const GIVES: &[MethodSchema] =
            &[MethodSchema { gives: PayloadSchema::of(LINES), ..method("pay", NOTHING) }];
        const GIVES_WIDE: &[MethodSchema] =
            &[MethodSchema { gives: PayloadSchema::of(WIDE_LINES), ..method("pay", NOTHING) }];
        assert_eq!(interface(WIDE).fit(&interface(NARROW)), [Fit::Converts(0)]);
        let text = refusal(&interface(NARROW), &interface(WIDE));
        let rule =
            "argument `lines.cents`: `i64` cannot become `u32`, of method `pay` of interface `Account`";
        assert_eq!(text, format!("{rule}: start a newer server"));
        assert_eq!(interface(GIVES).fit(&interface(GIVES_WIDE)), [Fit::Converts(0)]);
        let text = refusal(&interface(GIVES_WIDE), &interface(GIVES));
        assert!(
            text.starts_with("result `lines.cents`") && text.ends_with("build the caller anew"),
            "{text}"
        );
        const GIVES_NOTHING: &[MethodSchema] = &[method("pay", NOTHING)];
        let text = refusal(&interface(GIVES_NOTHING), &interface(GIVES));
        assert!(text.ends_with("gives no such result at the server: start a newer one"), "{text}");
        assert_eq!(interface(GIVES).fit(&interface(GIVES_NOTHING)), [Fit::Converts(0)]);
    }
}
