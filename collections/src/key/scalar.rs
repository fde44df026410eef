//! Keys of a fixed length: numbers highest byte first, so that their bytes are in the order of their values.

use super::{BadKey, Form, Key, Shape, shape};

/// The bytes at the front, as many as an array has.
fn front<const N: usize>(from: &mut &[u8]) -> Result<[u8; N], BadKey> {
    let (bytes, rest) = from.split_first_chunk::<N>().ok_or(BadKey)?;
    *from = rest;
    Ok(*bytes)
}

/// A key of a fixed length, from and to the number whose order is its own.
macro_rules! numbers {
    ($($t:ty as $bits:ty: $code:expr, $to:expr, $of:expr;)*) => {$(
        impl Key for $t {
            type Arg<'k> = $t;
            const SHAPE: Shape = Shape::new($code);
            const BYTES: Option<usize> = Some(size_of::<$bits>());

            fn arg(&self) -> $t {
                *self
            }

            fn put(key: Self::Arg<'_>, _: Form, to: &mut Vec<u8>) {
                to.extend_from_slice(Self::encode(key).as_ref());
            }

            fn take(from: &mut &[u8], _: Form) -> Result<$t, BadKey> {
                let of: fn($bits) -> Option<$t> = $of;
                of(<$bits>::from_le_bytes(front(from)?).swap_bytes()).ok_or(BadKey)
            }

            #[inline]
            fn encode<'k>(key: Self::Arg<'k>) -> impl AsRef<[u8]> + 'k {
                let to: fn($t) -> $bits = $to;
                to(key).swap_bytes().to_le_bytes()
            }
        }
    )*};
}

numbers! {
    u8 as u8: shape::U8, |n| n, Some;
    u16 as u16: shape::U16, |n| n, Some;
    u32 as u32: shape::U32, |n| n, Some;
    u64 as u64: shape::U64, |n| n, Some;
    u128 as u128: shape::U128, |n| n, Some;
    // The sign is turned around: what is negative comes first.
    i8 as u8: shape::I8, |n| n as u8 ^ 1 << 7, |bits| Some((bits ^ 1 << 7) as i8);
    i16 as u16: shape::I16, |n| n as u16 ^ 1 << 15, |bits| Some((bits ^ 1 << 15) as i16);
    i32 as u32: shape::I32, |n| n as u32 ^ 1 << 31, |bits| Some((bits ^ 1 << 31) as i32);
    i64 as u64: shape::I64, |n| n as u64 ^ 1 << 63, |bits| Some((bits ^ 1 << 63) as i64);
    i128 as u128: shape::I128, |n| n as u128 ^ 1 << 127, |bits| Some((bits ^ 1 << 127) as i128);
    bool as u8: shape::BOOL, |is| is as u8, |bits| (bits < 2).then_some(bits == 1);
    char as u32: shape::CHAR, |c| c as u32, char::from_u32;
    // A negative number is the greater the less its other bits are.
    f32 as u32: shape::F32,
        |n| if n.is_sign_negative() { !n.to_bits() } else { n.to_bits() | 1 << 31 },
        |bits| Some(f32::from_bits(if bits < 1 << 31 { !bits } else { bits ^ 1 << 31 }));
    f64 as u64: shape::F64,
        |n| if n.is_sign_negative() { !n.to_bits() } else { n.to_bits() | 1 << 63 },
        |bits| Some(f64::from_bits(if bits < 1 << 63 { !bits } else { bits ^ 1 << 63 }));
}

impl<const N: usize> Key for [u8; N] {
    type Arg<'k> = [u8; N];
    const SHAPE: Shape = Shape::array(N);
    const BYTES: Option<usize> = Some(N);

    fn arg(&self) -> [u8; N] {
        *self
    }

    fn put(key: Self::Arg<'_>, _: Form, to: &mut Vec<u8>) {
        to.extend_from_slice(&key);
    }

    fn take(from: &mut &[u8], _: Form) -> Result<[u8; N], BadKey> {
        front(from)
    }

    fn encode<'k>(key: Self::Arg<'k>) -> impl AsRef<[u8]> + 'k {
        key
    }
}
