//! The macros of the table of messages: a body's type with its form, and what follows from all rows.

/// The form of a field: the one that is named, or its type.
macro_rules! form {
    ($type:ty) => {
        $type
    };
    ($type:ty, $form:ty) => {
        $form
    };
}

/// The type of the body of a row.
macro_rules! type_of {
    ($name:ident [$($lt:lifetime)?] ()) => { Nothing };
    ($name:ident [$($lt:lifetime)?] ($type:ty)) => { $type };
    ($name:ident [$($lt:lifetime)?] { $($field:tt)* }) => { $name $(<$lt>)? };
}

/// A body in the words of its row.
macro_rules! words {
    (()) => { "" };
    (($type:ty)) => { stringify!($type) };
    ({ $($(#[doc = $of:literal])* $field:ident: $type:ty $(as $form:ty)?,)* }) => {
        concat!($(stringify!($field), ": ", stringify!($type), $(" as ", stringify!($form),)? ", "),*)
    };
}

/// The type of a body, or of a part of one, and its form.
macro_rules! body {
    ([$($doc:literal)*] $name:ident [$($lt:lifetime)?] () []) => {};
    ([$($doc:literal)*] $name:ident [$($lt:lifetime)?] ($type:ty) []) => {};
    ([$($doc:literal)*] $name:ident [$($lt:lifetime)?] {
        $($(#[doc = $of:literal])* $field:ident: $type:ty $(as $form:ty)?,)*
    } [$($check:path)?]) => {
        $(#[doc = $doc])*
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub struct $name $(<$lt>)? { $($(#[doc = $of])* pub $field: $type,)* }

        impl<'a> Form<'a> for $name $(<$lt>)? {
            const BYTES_MIN: usize = 0 $(+ <form!($type $(, $form)?) as Form<'a, $type>>::BYTES_MIN)*;
            #[inline]
            fn put(it: &Self, out: &mut Vec<u8>) {
                $(<form!($type $(, $form)?) as Form<'a, $type>>::put(&it.$field, out);)*
            }
            #[inline]
            fn take(r: &mut Reader<'a>, _: &'static str) -> Result<Self, DecodeError> {
                let it = $name {
                    $($field: <form!($type $(, $form)?) as Form<'a, $type>>::take(r, stringify!($field))?,)*
                };
                $($check(&it)?;)?
                Ok(it)
            }
        }

        impl $(<$lt>)? $name $(<$lt>)? {
            /// Appends it.
            #[inline]
            pub fn encode(&self, out: &mut Vec<u8>) {
                <Self as Form<'_>>::put(self, out);
            }

            /// Reads it: all of the bytes.
            #[inline]
            pub fn decode(body: & $($lt)? [u8]) -> Result<Self, DecodeError> {
                let mut r = Reader::new(body);
                let it = <Self as Form<'_>>::take(&mut r, stringify!($name))?;
                r.end()?;
                Ok(it)
            }
        }
    };
}

/// Parts of bodies.
macro_rules! parts {
    ($($(#[doc = $doc:literal])* $($lt:lifetime)? $name:ident $body:tt $(where $check:path)?;)*) => {
        $(body!([$($doc)*] $name [$($lt)?] $body [$($check)?]);)*

        /// Parts of bodies, for people: the name, and the fields.
        pub const PARTS: &[(&str, &str)] = &[$((stringify!($name), words!($body)),)*];
    };
}

/// Generates the message types from the rows.
macro_rules! messages {
    ($($side:ident {$(
        $(#[doc = $doc:literal])*
        $n:literal $($lt:lifetime)? $kind:ident $body:tt $(where $check:path)? $(=> $($answer:ident)|+)?;
    )*})*) => {
        $($(body!([$($doc)*] $kind [$($lt)?] $body [$($check)?]);)*)*

        /// The kind of a message. Numbers below 64 are requests; the others are replies, and messages that a
        /// server sends unasked.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Kind {
            $($($(#[doc = $doc])* $kind,)*)*
            /// A kind that this build does not know, by its number.
            Unknown(u8),
        }

        impl Kind {
            /// All that this build knows.
            pub const ALL: &'static [Kind] = &[$($(Kind::$kind,)*)*];

            /// The kind of a number.
            pub fn of(number: u8) -> Kind {
                match number {
                    $($($n => Kind::$kind,)*)*
                    other => Kind::Unknown(other),
                }
            }

            /// The number of the kind in a frame.
            pub fn number(self) -> u8 {
                match self {
                    $($(Kind::$kind => $n,)*)*
                    Kind::Unknown(number) => number,
                }
            }

            /// The messages that answer it, but for [`Refused`].
            pub fn answers(self) -> &'static [Kind] {
                match self {
                    $($(Kind::$kind => &[$($(Kind::$answer),+)?],)*)*
                    Kind::Unknown(_) => &[],
                }
            }

            /// Says whether a row names it as an answer; other messages are sent unasked, or on streams.
            #[allow(unreachable_patterns, reason = "some kinds answer several requests")]
            pub fn is_answer(self) -> bool {
                match self {
                    $($($($(Kind::$answer)|+ => true,)?)*)*
                    _ => false,
                }
            }
        }

        /// Rows of the table, for people: the kind, its sender, its body and what it is.
        pub const ROWS: &[(Kind, &str, &str, &str)] =
            &[$($((Kind::$kind, stringify!($side), words!($body), concat!($($doc),*)),)*)*];

        $(
            /// A message of this side, read.
            #[derive(Debug, Clone, PartialEq, Eq)]
            pub enum $side<'a> {
                $($(#[doc = $doc])* $kind(type_of!($kind [$($lt)?] $body)),)*
            }

            impl<'a> $side<'a> {
                /// The kinds of these messages.
                pub const KINDS: &'static [Kind] = &[$(Kind::$kind),*];

                /// The kind of the message.
                pub fn kind(&self) -> Kind {
                    match self {
                        $($side::$kind(_) => Kind::$kind,)*
                    }
                }

                /// Appends its body.
                pub fn encode(&self, out: &mut Vec<u8>) {
                    match self {
                        $($side::$kind(body) => body.encode(out),)*
                    }
                }

                /// Reads the body of a message of a kind.
                ///
                /// # Errors
                /// If the kind is not known or the other side's, or the body is not one of it.
                #[inline]
                pub fn decode(kind: Kind, body: &'a [u8]) -> Result<$side<'a>, MessageError> {
                    match kind {
                        $(Kind::$kind => {
                            Ok($side::$kind(<type_of!($kind [$($lt)?] $body)>::decode(body)?))
                        })*
                        Kind::Unknown(number) => Err(MessageError::Unknown(number)),
                        other => Err(MessageError::OtherSide(other)),
                    }
                }
            }
        )*
    };
}

pub(super) use {body, form, messages, parts, type_of, words};
