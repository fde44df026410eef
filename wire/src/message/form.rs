//! Forms: how a field of a message looks as bytes, and how it is checked.
//!
//! A type whose fields all look the same is its own form; a field that looks otherwise names its form in the
//! table, behind `as`. The invariant: whatever a form takes it has checked, and it allocates no more than the
//! bytes that are left could fill.

use crate::access::{Principal, Role};
use crate::cursor::{DecodeError, Put, Reader, told};
use crate::id::{
    ClassId, ClientId, MemberId, OP_SLOTS_MAX, OpId, Oref, PageId, SERVICE_SLOTS_MAX, SpaceId, Stamp, ViewId,
};
use crate::interface::{Interface, METHODS_MAX};
use crate::layout::Layout;
use crate::token::{TOKEN_BYTES, Token};
use crate::vector::Vector;

/// The form of fields of type `T`.
pub trait Form<'a, T = Self> {
    /// Bytes that a field has at least.
    const BYTES_MIN: usize;
    /// Appends a field.
    fn put(field: &T, out: &mut Vec<u8>);
    /// Takes a field off the front of a body. The error names it.
    fn take(r: &mut Reader<'a>, name: &'static str) -> Result<T, DecodeError>;
}

/// Forms of types, in a line each: bytes at least, how one is put, how one is taken.
macro_rules! forms {
    ($($form:ty [$t:ty] $min:expr, |$v:ident, $out:ident| $put:expr, |$r:ident, $name:ident| $take:expr;)*) => {$(
        impl<'a> Form<'a, $t> for $form {
            const BYTES_MIN: usize = $min;
            #[inline]
            fn put($v: &$t, $out: &mut Vec<u8>) { $put }
            #[inline]
            fn take($r: &mut Reader<'a>, $name: &'static str) -> Result<$t, DecodeError> { $take }
        }
    )*};
}

/// A number that a condition holds for.
fn only<T>(n: T, is_one: impl FnOnce(&T) -> bool, name: &'static str) -> Result<T, DecodeError> {
    if is_one(&n) { Ok(n) } else { Err(DecodeError::BadField(name)) }
}

fn text<'a>(bytes: &'a [u8], name: &'static str) -> Result<&'a str, DecodeError> {
    std::str::from_utf8(bytes).map_err(|_| DecodeError::BadField(name))
}

forms! {
    u8 [u8] 1, |v, out| out.put_u8(*v), |r, _name| r.u8();
    u16 [u16] 2, |v, out| out.put_u16(*v), |r, _name| r.u16();
    u32 [u32] 4, |v, out| out.put_u32(*v), |r, _name| r.u32();
    u64 [u64] 8, |v, out| out.put_u64(*v), |r, _name| r.u64();
    bool [bool] 1, |v, out| out.put_u8((*v).into()), |r, name| Ok(only(r.u8()?, |n| *n <= 1, name)? == 1);
    ClassId [ClassId] 2, |v, out| out.put_u16(v.0), |r, _name| Ok(ClassId(r.u16()?));
    ClientId [ClientId] 8, |v, out| out.put_u64(v.0), |r, _name| Ok(ClientId(r.u64()?));
    MemberId [MemberId] 8, |v, out| out.put_u64(v.0), |r, _name| Ok(MemberId(r.u64()?));
    SpaceId [SpaceId] 8, |v, out| out.put_u64(v.0), |r, _name| Ok(SpaceId(r.u64()?));
    Stamp [Stamp] 8, |v, out| out.put_u64(v.0), |r, _name| Ok(Stamp(r.u64()?));
    ViewId [ViewId] 8, |v, out| v.encode(out), |r, _name| ViewId::decode(r);
    Token [Token] TOKEN_BYTES, |v, out| v.encode(out), |r, _name| Token::decode(r);
    Principal [Principal] 4, |v, out| v.encode(out), |r, _name| Principal::decode(r);
    Role [Role] 5, |v, out| v.encode(out), |r, _name| Role::decode(r);
    Vector [Vector] 1, |v, out| v.encode(out), |r, _name| Vector::decode(r);
    PageId [PageId] 4, |v, out| out.put_u32(v.get()),
        |r, name| PageId::new(r.u32()?).ok_or(DecodeError::BadField(name));
    Oref [Oref] 4, |v, out| out.put_u32(v.raw()),
        |r, name| Oref::from_raw(r.u32()?).filter(|o| !o.is_null()).ok_or(DecodeError::BadField(name));
    OpId [OpId] 26, |v, out| {
        out.put_u64(v.client.0);
        out.put_u16(v.slot);
        out.put_u64(v.seq);
        v.view.encode(out);
    }, |r, name| {
        let op = OpId { client: ClientId(r.u64()?), slot: r.u16()?, seq: r.u64()?, view: ViewId::decode(r)? };
        only(op, |op| op.slot < OP_SLOTS_MAX && op.seq > 0, name)
    };
    [u8; 32] [[u8; 32]] 32, |v, out| out.extend_from_slice(v), |r, _name| {
        let mut bytes = [0; 32];
        bytes.copy_from_slice(r.take(32)?);
        Ok(bytes)
    };
    // Its length stands before it.
    Layout [Layout] 4, |v, out| {
        let mut bytes = Vec::new();
        v.encode(&mut bytes);
        out.put_bytes(&bytes);
    }, |r, name| Layout::decode(r.bytes(name)?);
    Interface [Interface] 1, |v, out| v.encode(out), |r, _name| Interface::decode(r);
    // What is left of the body.
    &'a [u8] [&'a [u8]] 0, |v, out| out.extend_from_slice(v), |r, _name| r.take(r.rest().len());
    // A text that is left of the body.
    String [String] 0, |v, out| out.extend_from_slice(v.as_bytes()),
        |r, name| Ok(text(r.take(r.rest().len())?, name)?.to_owned());
    Told [String] 4, |v, out| out.put_bytes(told(v)), |r, name| Ok(r.str(name)?.to_owned());
    FromOne [u64] 8, |v, out| out.put_u64(*v), |r, name| only(r.u64()?, |n| *n > 0, name);
    ServiceSlot [u16] 2, |v, out| out.put_u16(*v), |r, name| only(r.u16()?, |n| *n < SERVICE_SLOTS_MAX, name);
    PagesEnd [u32] 4, |v, out| out.put_u32(*v), |r, name| only(r.u32()?, |n| *n <= PageId::MAX.get() + 1, name);
    NoneAtMax [Option<u16>] 2, |v, out| out.put_u16(v.unwrap_or(u16::MAX)),
        |r, _name| Ok(Some(r.u16()?).filter(|n| *n != u16::MAX));
    // Each after its length, up to the end.
    Servers [Vec<String>] 0, |v, out| v.iter().for_each(|at| out.put_bytes(at.as_bytes())), |r, name| {
        let mut servers = Vec::new();
        while !r.rest().is_empty() {
            servers.push(r.str(name)?.to_owned());
        }
        if servers.len() > SERVERS_MAX { Err(DecodeError::TooMany(name)) } else { Ok(servers) }
    };
    Numbered [Numbered] 2, |v, out| match &v.refused {
        None => out.put_u16(v.number),
        Some(why) => {
            out.put_u16(v.number | REFUSED);
            out.put_bytes(told(why));
        }
    }, |r, name| {
        let number = r.u16()?;
        let refused = if number & REFUSED == 0 { None } else { Some(r.str(name)?.to_owned()) };
        Ok(Numbered { number: number & !REFUSED, refused })
    };
    Methods [Vec<Numbered>] 4, |v, out| Vec::put(v, out), |r, name| {
        let methods: Vec<Numbered> = Vec::take(r, name)?;
        if methods.len() > METHODS_MAX { Err(DecodeError::TooMany(name)) } else { Ok(methods) }
    };
}

/// The number by which a method is called.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Numbered {
    /// The number: below 32,768.
    pub number: u16,
    /// The reason why the method cannot be called, where a call has no answer that could carry it. Calls of
    /// other methods that cannot be called are answered with their reasons.
    pub refused: Option<String>,
}

impl From<u16> for Numbered {
    fn from(number: u16) -> Numbered {
        Numbered { number, refused: None }
    }
}

/// Set in the number of a method with a reason after it.
const REFUSED: u16 = 1 << 15;

/// A text after its length, cut to the bytes that a message takes.
pub struct Told;
/// A number from 1 on.
pub struct FromOne;
/// A slot of calls of services.
pub struct ServiceSlot;
/// A page, or the number after the last page.
pub struct PagesEnd;
/// A number, or 65,535 for none.
pub struct NoneAtMax;
/// Addresses of servers, up to the end of a body, [`SERVERS_MAX`] at most.
pub struct Servers;
/// Numbers of methods, as many as an interface may have.
pub struct Methods;
/// Addresses of servers in one message: as many as a group has members.
pub const SERVERS_MAX: usize = 16;
/// A field that may be missing at the end of a body.
pub struct Tail;
/// Fields up to the end of a body.
pub struct ToEnd;

impl<'a, T: Form<'a>> Form<'a, Option<T>> for Tail {
    const BYTES_MIN: usize = 0;
    fn put(field: &Option<T>, out: &mut Vec<u8>) {
        field.iter().for_each(|field| T::put(field, out));
    }
    fn take(r: &mut Reader<'a>, name: &'static str) -> Result<Option<T>, DecodeError> {
        if r.rest().is_empty() { Ok(None) } else { T::take(r, name).map(Some) }
    }
}

impl<'a, T: Form<'a>> Form<'a, Vec<T>> for ToEnd {
    const BYTES_MIN: usize = 0;
    fn put(field: &Vec<T>, out: &mut Vec<u8>) {
        field.iter().for_each(|one| T::put(one, out));
    }
    fn take(r: &mut Reader<'a>, name: &'static str) -> Result<Vec<T>, DecodeError> {
        let mut all = Vec::new();
        while !r.rest().is_empty() {
            all.push(T::take(r, name)?);
        }
        Ok(all)
    }
}

/// Behind a byte 1, or a byte 0 for none.
impl<'a, T: Form<'a>> Form<'a> for Option<T> {
    const BYTES_MIN: usize = 1;
    fn put(field: &Option<T>, out: &mut Vec<u8>) {
        out.put_u8(field.is_some().into());
        Tail::put(field, out);
    }
    fn take(r: &mut Reader<'a>, name: &'static str) -> Result<Option<T>, DecodeError> {
        bool::take(r, name)?.then(|| T::take(r, name)).transpose()
    }
}

/// Behind their count, which is believed only if the bytes that are left can hold so many.
impl<'a, T: Form<'a>> Form<'a> for Vec<T> {
    const BYTES_MIN: usize = 4;
    fn put(field: &Vec<T>, out: &mut Vec<u8>) {
        out.put_u32(field.len() as u32);
        ToEnd::put(field, out);
    }
    fn take(r: &mut Reader<'a>, name: &'static str) -> Result<Vec<T>, DecodeError> {
        (0..r.count(T::BYTES_MIN, name)?).map(|_| T::take(r, name)).collect()
    }
}

impl<'a, A: Form<'a>, B: Form<'a>> Form<'a> for (A, B) {
    const BYTES_MIN: usize = A::BYTES_MIN + B::BYTES_MIN;
    fn put((a, b): &(A, B), out: &mut Vec<u8>) {
        A::put(a, out);
        B::put(b, out);
    }
    fn take(r: &mut Reader<'a>, name: &'static str) -> Result<(A, B), DecodeError> {
        Ok((A::take(r, name)?, B::take(r, name)?))
    }
}

/// Enums that are a byte.
macro_rules! numbered {
    ($(#[doc = $doc:literal])* $name:ident { $($(#[doc = $of:literal])* $variant:ident = $n:literal,)* }) => {
        $(#[doc = $doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum $name { $($(#[doc = $of])* $variant = $n,)* }

        impl $name {
            /// All of them.
            pub const ALL: &'static [$name] = &[$($name::$variant),*];

            #[allow(dead_code, reason = "some are read as fields alone")]
            pub(super) fn of(n: u64) -> Option<$name> {
                match n { $($n => Some($name::$variant),)* _ => None }
            }
        }

        impl<'a> Form<'a> for $name {
            const BYTES_MIN: usize = 1;
            fn put(field: &$name, out: &mut Vec<u8>) {
                out.put_u8(*field as u8);
            }
            fn take(r: &mut Reader<'a>, name: &'static str) -> Result<$name, DecodeError> {
                $name::of(r.u8()?.into()).ok_or(DecodeError::BadField(name))
            }
        }
    };
}
pub(super) use numbered;
