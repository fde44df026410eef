//! `#[derive(Record)]`: a small record that is a field of an object, read and written whole. Of an enum it is
//! one of several.

use proc_macro2::TokenStream;
use quote::format_ident;
use syn::{Index, Member};

use crate::input::{Enum, Input};
use crate::quote;
use crate::schema::{asked, assertions, assertions_of, offset, schema, wrong};

/// The code of the derive on a struct.
pub fn record(input: &Input) -> TokenStream {
    let krate = &input.krate;
    let owner = quote!(#krate::__private::Record);
    let puts = input.members.iter().enumerate().map(|(i, m)| {
        let field = &m.ident;
        let in_record = offset(input, &owner, i);
        let put = asked(input, m, quote!(put_field));
        quote!(#put(&self.#field, e, at + #in_record);)
    });
    let loads = input.members.iter().enumerate().map(|(i, m)| {
        let field = &m.ident;
        let in_record = offset(input, &owner, i);
        let load = asked(input, m, quote!(load));
        quote!(#field: #load(stored, at + #in_record)?,)
    });
    let parts = Parts {
        ty: quote!(Record),
        schema: schema(input),
        put: quote!(#(#puts)*),
        load: quote!(::core::result::Result::Ok(Self { #(#loads)* })),
        assertions: assertions(input, &owner),
    };
    implementations(input, parts)
}

/// The code of the derive on an enum.
pub fn record_of_enum(input: &Enum) -> TokenStream {
    let Enum { whole, variants } = input;
    let (ident, name, krate) = (&whole.ident, &whole.name, &whole.krate);
    let private = quote!(#krate::__private);
    let wire = quote!(#private::wire::schema);
    let place = |v: usize, i: usize| quote!(<#ident as #private::Record>::SCHEMA.offset_in(#v, #i));
    let (mut schemas, mut puts, mut loads, mut checks) = (vec![], vec![], vec![], vec![]);
    for (v, variant) in variants.iter().enumerate() {
        let (of, name, schema) = (&variant.ident, &variant.name, schema(variant));
        let tag = v as u8;
        let (mut binds, mut put, mut load) = (vec![], vec![], vec![]);
        for (i, m) in variant.members.iter().enumerate() {
            // By its number a field of a tuple is named as one of a struct is.
            let field = match m.index {
                Some(index) => Member::Unnamed(Index::from(index)),
                None => Member::Named(m.ident.clone()),
            };
            let (at, value) = (place(v, i), format_ident!("value_{i}"));
            let (puts, loads) = (asked(variant, m, quote!(put_field)), asked(variant, m, quote!(load)));
            binds.push(quote!(#field: #value));
            put.push(quote!(#puts(#value, e, at + const { #at });));
            load.push(quote!(#field: #loads(stored, at + const { #at })?));
        }
        schemas.push(quote!(#wire::Field { name: #name, ty: #wire::Type::Record(&#schema) }));
        puts.push(quote!(Self::#of { #(#binds),* } => { e.set(at, &[#tag]); #(#put)* }));
        loads.push(quote!(#tag => ::core::result::Result::Ok(Self::#of { #(#load),* }),));
        checks.push(assertions_of(variant, |i| place(v, i)));
    }
    let wrong = wrong(whole);
    let parts = Parts {
        ty: quote!(Enum),
        schema: quote!(#wire::Schema { name: #name, fields: &[#wire::TAG, #(#schemas),*] }),
        put: quote!(match self { #(#puts)* }),
        load: quote! {
            match <::core::primitive::u8 as #private::Field>::load(stored, at)? {
                #(#loads)*
                tag => ::core::result::Result::Err(#private::no_variant(#name, tag)),
            }
        },
        assertions: quote!(#wrong #(#checks)*),
    };
    implementations(whole, parts)
}

/// The differences between the code of a struct and that of an enum.
struct Parts {
    /// The kind of its type.
    ty: TokenStream,
    schema: TokenStream,
    /// Writes it at `at`.
    put: TokenStream,
    /// Reads it from `at`.
    load: TokenStream,
    assertions: TokenStream,
}

fn implementations(input: &Input, parts: Parts) -> TokenStream {
    let (ident, krate) = (&input.ident, &input.krate);
    let private = quote!(#krate::__private);
    let wire = quote!(#private::wire);
    let result = quote!(::core::result::Result<Self, #private::Error>);
    let results = quote!(::core::result::Result<::std::vec::Vec<Self>, #private::Error>);
    let Parts { ty, schema, put, load, assertions } = parts;
    // Maps lead to the objects of a class.
    let map_value = (!input.is_class).then(|| quote!(#wire::map_value!([] #ident);));
    quote! {
        const _: () = {
            #[automatically_derived]
            impl #private::Record for #ident {
                const SCHEMA: #wire::schema::Schema = #schema;

                #[allow(deprecated)]
                fn put_fields(&self, e: &mut #wire::record::Encoder<'_>, at: ::core::primitive::usize) {
                    #put
                }

                #[allow(deprecated)]
                fn load_fields(stored: &#private::Stored<'_>, at: ::core::primitive::usize) -> #result {
                    #load
                }
            }

            #[automatically_derived]
            impl #wire::record::Value for #ident {
                const TYPE: #wire::schema::Type = #wire::schema::Type::#ty(&<Self as #private::Record>::SCHEMA);

                fn put(&self, e: &mut #wire::record::Encoder<'_>, at: ::core::primitive::usize) {
                    #private::Record::put_fields(self, e, at)
                }
            }

            #[automatically_derived]
            impl #private::Field for #ident {
                type Got<'a, 't, T: #private::Object> = #result where 't: 'a;

                fn got<'a, 't, T: #private::Object>(
                    obj: &'a #private::RawObj<'t, T>,
                    at: ::core::primitive::usize,
                ) -> Self::Got<'a, 't, T> {
                    <Self as #private::Record>::load_fields(&obj.stored(), at)
                }

                fn load(stored: &#private::Stored<'_>, at: ::core::primitive::usize) -> #result {
                    <Self as #private::Record>::load_fields(stored, at)
                }
            }

            #map_value

            #[automatically_derived]
            impl #private::ListField for #ident {
                type Items<'a, 't, T: #private::Object> = #private::Elements<'a, 't, T, Self> where 't: 'a;

                fn items<'a, 't, T: #private::Object>(
                    obj: &'a #private::RawObj<'t, T>,
                    at: ::core::primitive::usize,
                ) -> Self::Items<'a, 't, T> {
                    #private::Elements::new(obj, at)
                }

                fn load_items(stored: &#private::Stored<'_>, at: ::core::primitive::usize) -> #results {
                    #private::load_elements(stored, at)
                }
            }

            #assertions
        };
    }
}
