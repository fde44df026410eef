//! The least of keys and tables that derived code names.

pub mod key {
    use tercel_wire::record::Text;

    pub type KeyBytes = Vec<u8>;
    #[derive(Clone, Copy)]
    pub struct Shape;
    #[derive(Clone, Copy)]
    pub struct Form;
    pub struct BadKey;

    #[diagnostic::on_unimplemented(message = "`{Self}` cannot be a key of a map or an index")]
    pub trait Key: Clone + std::fmt::Debug + 'static {
        type Arg<'k>: Copy;
        const SHAPE: Shape;
        const BYTES: Option<usize>;
        fn arg(&self) -> Self::Arg<'_>;
        fn put(key: Self::Arg<'_>, form: Form, to: &mut KeyBytes);
        fn take(from: &mut &[u8], form: Form) -> Result<Self, BadKey>;
    }

    impl Key for u32 {
        type Arg<'k> = u32;
        const SHAPE: Shape = Shape;
        const BYTES: Option<usize> = Some(4);
        fn arg(&self) -> u32 {
            *self
        }
        fn put(key: Self::Arg<'_>, _: Form, to: &mut KeyBytes) {
            to.extend(key.to_le_bytes());
        }
        fn take(_: &mut &[u8], _: Form) -> Result<u32, BadKey> {
            Err(BadKey)
        }
    }

    impl<A: Key, B: Key> Key for (A, B) {
        type Arg<'k> = (A::Arg<'k>, B::Arg<'k>);
        const SHAPE: Shape = Shape;
        const BYTES: Option<usize> = None;
        fn arg(&self) -> Self::Arg<'_> {
            (self.0.arg(), self.1.arg())
        }
        fn put(key: Self::Arg<'_>, form: Form, to: &mut KeyBytes) {
            A::put(key.0, form, to);
            B::put(key.1, form, to);
        }
        fn take(from: &mut &[u8], form: Form) -> Result<Self, BadKey> {
            Ok((A::take(from, form)?, B::take(from, form)?))
        }
    }

    impl Key for Text {
        type Arg<'k> = &'k str;
        const SHAPE: Shape = Shape;
        const BYTES: Option<usize> = None;
        fn arg(&self) -> &str {
            &self.0
        }
        fn put(key: Self::Arg<'_>, _: Form, to: &mut KeyBytes) {
            to.extend(key.as_bytes());
        }
        fn take(_: &mut &[u8], _: Form) -> Result<Text, BadKey> {
            Err(BadKey)
        }
    }
}

pub mod table {
    use std::marker::PhantomData;

    use super::super::{Error, Field, Object, RawMut, Stored};
    use super::key::{Form, Key, KeyBytes};
    use tercel_wire::record::Ref;

    pub struct Declaration {
        pub class: &'static str,
        pub key: &'static str,
        pub indexes: &'static [IndexDeclaration],
    }

    pub struct IndexDeclaration;

    impl IndexDeclaration {
        pub const fn new<K: Key, P: Key>(_: &'static str, _: bool) -> IndexDeclaration {
            IndexDeclaration
        }
    }

    pub struct Index<T, K>(PhantomData<fn() -> (T, K)>);

    impl<T, K> Index<T, K> {
        pub const fn new(_: usize) -> Index<T, K> {
            Index(PhantomData)
        }
    }

    pub struct RowMut<'t, T: Object>(RawMut<'t, T>);

    impl<'t, T: Object> RowMut<'t, T> {
        pub fn raw(&self) -> &RawMut<'t, T> {
            &self.0
        }
        pub fn reference(&self) -> Ref<T> {
            self.0.reference()
        }
        pub fn set<F: Field>(&self, field: usize, at: usize, value: F, _: &[usize]) -> Result<(), Error> {
            value.set_field(&self.0, field, at)
        }
    }

    pub trait Row: Object {
        type Key: Key;
        type Edit<'t>;
        const TABLE: Declaration;
        fn guard<'t>(row: RowMut<'t, Self>) -> Self::Edit<'t>;
        fn key(&self) -> <Self::Key as Key>::Arg<'_>;
        fn put_index(&self, index: usize, form: Form, to: &mut KeyBytes);
        fn put_stored_key(stored: &Stored<'_>, form: Form, to: &mut KeyBytes) -> Result<(), Error>;
        fn put_stored_index(
            stored: &Stored<'_>,
            index: usize,
            form: Form,
            to: &mut KeyBytes,
        ) -> Result<(), Error>;
    }
}
