//! Keys made of other keys: none or one, in the other direction, several one behind the other.

use std::cmp::Reverse;

use super::{BadKey, Form, Key, Prefix, Shape, shape};

/// A byte 0 or 1, then the key if there is one.
impl<K: Key> Key for Option<K> {
    type Arg<'k> = Option<K::Arg<'k>>;
    const SHAPE: Shape = Shape::new(shape::OPTION).then(K::SHAPE);
    const BYTES: Option<usize> = None;

    fn arg(&self) -> Self::Arg<'_> {
        self.as_ref().map(K::arg)
    }

    fn put(key: Self::Arg<'_>, form: Form, to: &mut Vec<u8>) {
        to.push(u8::from(key.is_some()));
        if let Some(key) = key {
            K::put(key, form, to);
        }
    }

    fn take(from: &mut &[u8], form: Form) -> Result<Option<K>, BadKey> {
        match u8::take(from, form)? {
            0 => Ok(None),
            1 => K::take(from, form).map(Some),
            _ => Err(BadKey),
        }
    }
}

/// All bits are turned around. The key has an end of its own also at the end: else what is longer would come
/// behind what it begins with, in either direction.
impl<K: Key> Key for Reverse<K> {
    type Arg<'k> = Reverse<K::Arg<'k>>;
    const SHAPE: Shape = Shape::new(shape::REVERSE).then(K::SHAPE);
    const BYTES: Option<usize> = K::BYTES;

    fn arg(&self) -> Self::Arg<'_> {
        Reverse(self.0.arg())
    }

    fn put(key: Self::Arg<'_>, _: Form, to: &mut Vec<u8>) {
        let at = to.len();
        K::put(key.0, Form::Inner, to);
        to[at..].iter_mut().for_each(|byte| *byte = !*byte);
    }

    fn take(from: &mut &[u8], _: Form) -> Result<Reverse<K>, BadKey> {
        let turned: Vec<u8> = from.iter().map(|byte| !byte).collect();
        let mut rest = &turned[..];
        let key = K::take(&mut rest, Form::Inner)?;
        *from = &from[turned.len() - rest.len()..];
        Ok(Reverse(key))
    }
}

/// The sum, if all have a fixed length.
const fn sum(parts: &[Option<usize>]) -> Option<usize> {
    let (mut i, mut all) = (0, 0);
    while i < parts.len() {
        match parts[i] {
            Some(bytes) => all += bytes,
            None => return None,
        }
        i += 1;
    }
    Some(all)
}

macro_rules! tuples {
    ($(($($k:ident $i:tt),+; $last:ident $l:tt))*) => {$(
        impl<$($k: Key,)+ $last: Key> Key for ($($k,)+ $last,) {
            type Arg<'k> = ($($k::Arg<'k>,)+ $last::Arg<'k>,);
            const SHAPE: Shape = Shape::tuple($l + 1)$(.then($k::SHAPE))+.then($last::SHAPE);
            const BYTES: Option<usize> = sum(&[$($k::BYTES,)+ $last::BYTES]);

            fn arg(&self) -> Self::Arg<'_> {
                ($(self.$i.arg(),)+ self.$l.arg(),)
            }

            fn put(key: Self::Arg<'_>, form: Form, to: &mut Vec<u8>) {
                $($k::put(key.$i, Form::Inner, to);)+
                $last::put(key.$l, form, to);
            }

            fn take(from: &mut &[u8], form: Form) -> Result<Self, BadKey> {
                Ok(($($k::take(from, Form::Inner)?,)+ $last::take(from, form)?,))
            }
        }
    )*};
}
tuples! {
    (A 0; B 1)
    (A 0, B 1; C 2)
    (A 0, B 1, C 2; D 3)
}

macro_rules! prefixes {
    ($(($($k:ident $i:tt),+) of ($($other:ident),+))*) => {$(
        impl<'k, $($k: Key,)+ $($other: Key,)+> Prefix<($($k,)+ $($other,)+)> for ($($k::Arg<'k>,)+) {
            fn put_prefix(self, to: &mut Vec<u8>) {
                $($k::put(self.$i, Form::Inner, to);)+
            }
        }
    )*};
}
prefixes! {
    (A 0) of (B)
    (A 0) of (B, C)
    (A 0, B 1) of (C)
    (A 0) of (B, C, D)
    (A 0, B 1) of (C, D)
    (A 0, B 1, C 2) of (D)
}
