//! A collection as a field of an object: it stands there as the reference to its top node.

/// Makes the handle of a collection a copy of a reference, typed by the collection's contents.
macro_rules! handle {
    ($name:ident<$($p:ident: $bound:path),+>, $node:ty) => {
        impl<$($p),+> Clone for $name<$($p),+> {
            fn clone(&self) -> Self {
                *self
            }
        }

        impl<$($p),+> Copy for $name<$($p),+> {}

        impl<$($p),+> PartialEq for $name<$($p),+> {
            fn eq(&self, other: &Self) -> bool {
                self.top == other.top
            }
        }

        impl<$($p),+> Eq for $name<$($p),+> {}

        impl<$($p),+> std::fmt::Debug for $name<$($p),+> {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self.top.oref())
            }
        }

        impl<$($p),+> $name<$($p),+> {
            /// No collection, for a field that gets one later. Its reads and changes fail with `NotFound`.
            pub const NULL: Self =
                Self { top: tercel_wire::record::Ref::NULL, contents: std::marker::PhantomData };

            /// Says whether it is no collection.
            pub fn is_null(&self) -> bool {
                self.top.is_null()
            }

            /// The one that has this top node. That its contents are of the types named here is checked when
            /// they are read.
            pub fn open(top: tercel_wire::record::Ref<$node>) -> Self {
                Self { top, contents: std::marker::PhantomData }
            }

            /// The reference to its top node, which stays the same however it grows: to be stored as a root.
            pub fn reference(&self) -> tercel_wire::record::Ref<$node> {
                self.top
            }
        }

        impl<$($p: $bound),+> tercel_wire::record::Value for $name<$($p),+> {
            const TYPE: tercel_wire::schema::Type =
                <tercel_wire::record::Ref<$node> as tercel_wire::record::Value>::TYPE;

            fn put(&self, e: &mut tercel_wire::record::Encoder<'_>, at: usize) {
                tercel_wire::record::Value::put(&self.top, e, at);
            }
        }

        impl<$($p: $bound),+> tercel_engine::object::Field for $name<$($p),+> {
            type Got<'a, 't, Holder: tercel_engine::object::Object>
                = $name<$($p),+>
            where
                't: 'a;

            fn got<'a, 't, Holder: tercel_engine::object::Object>(
                obj: &'a tercel_engine::object::RawObj<'t, Holder>,
                at: usize,
            ) -> $name<$($p),+> {
                $name::open(<tercel_wire::record::Ref<$node> as tercel_engine::object::Field>::got(obj, at).reference())
            }

            fn load(
                stored: &tercel_engine::object::Stored<'_>,
                at: usize,
            ) -> Result<$name<$($p),+>, tercel_engine::Error> {
                <tercel_wire::record::Ref<$node> as tercel_engine::object::Field>::load(stored, at).map($name::open)
            }
        }
    };
}

pub(crate) use handle;
