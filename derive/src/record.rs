//! `#[derive(Record)]`: a small record that is a field of an object, read and written whole.

use proc_macro2::TokenStream;
use quote::quote;

use crate::input::Input;
use crate::schema::{asked, assertions, offset, schema};

/// The code of the derive.
pub fn record(input: &Input) -> TokenStream {
    let (ident, krate) = (&input.ident, &input.krate);
    let private = quote!(#krate::__private);
    let wire = quote!(#private::wire);
    let result = quote!(::core::result::Result<Self, #private::Error>);
    let results = quote!(::core::result::Result<::std::vec::Vec<Self>, #private::Error>);
    let owner = quote!(#private::Record);
    let schema = schema(input);
    let assertions = assertions(input, &owner);
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
    quote! {
        const _: () = {
            #[automatically_derived]
            impl #private::Record for #ident {
                const SCHEMA: #wire::schema::Schema = #schema;

                #[allow(deprecated)]
                fn put_fields(&self, e: &mut #wire::record::Encoder<'_>, at: ::core::primitive::usize) {
                    #(#puts)*
                }

                #[allow(deprecated)]
                fn load_fields(stored: &#private::Stored<'_>, at: ::core::primitive::usize) -> #result {
                    ::core::result::Result::Ok(Self { #(#loads)* })
                }
            }

            #[automatically_derived]
            impl #wire::record::Value for #ident {
                const TYPE: #wire::schema::Type = #wire::schema::Type::Record(&<Self as #private::Record>::SCHEMA);

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

            #[automatically_derived]
            impl #private::ListField for #ident {
                type Items<'a, 't, T: #private::Object> = #results where 't: 'a;

                fn items<'a, 't, T: #private::Object>(
                    obj: &'a #private::RawObj<'t, T>,
                    at: ::core::primitive::usize,
                ) -> Self::Items<'a, 't, T> {
                    #private::load_elements(&obj.stored(), at)
                }

                fn load_items(stored: &#private::Stored<'_>, at: ::core::primitive::usize) -> #results {
                    #private::load_elements(stored, at)
                }
            }

            #assertions
        };
    }
}
