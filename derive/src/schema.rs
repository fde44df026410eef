//! The schema of a struct, and the assertions about it that only the compiler can check.
//!
//! A field's type is named at its own span in everything that is emitted, so that an error of the compiler
//! points at the field. The bounds are the bounds of a catalogue; a program that compiles is never refused
//! for them later.

use proc_macro2::TokenStream;
use quote::{quote, quote_spanned};

use crate::input::{Input, Member};

/// The expression of the schema.
pub fn schema(input: &Input) -> TokenStream {
    let krate = &input.krate;
    let name = &input.name;
    let fields = input.members.iter().map(|m| {
        let (name, ty) = (m.name(), asked(input, m, quote!(FIELD_TYPE)));
        quote! {
            #krate::__private::wire::schema::Field { name: #name, ty: #ty }
        }
    });
    quote! {
        #krate::__private::wire::schema::Schema { name: #name, fields: &[#(#fields),*] }
    }
}

/// Where the field begins, known when the program is compiled. `owner` is the path of the trait that has the
/// schema.
pub fn offset(input: &Input, owner: &TokenStream, field: usize) -> TokenStream {
    let ident = &input.ident;
    quote!(const { <#ident as #owner>::SCHEMA.offset(#field) })
}

/// An item of the field's type as a field, spanned as the type is. Derived code asks a type for nothing else
/// and by no other way: of equal errors at equal places the compiler prints one, so a type that is no field
/// is a single error.
pub fn asked(input: &Input, member: &Member, item: TokenStream) -> TokenStream {
    let (krate, ty, first) = (&input.krate, &member.ty, member.span);
    let last = ty.clone().into_iter().last().map_or(first, |token| token.span());
    let open = quote_spanned!(first=> <);
    let close = quote_spanned!(last=> >::);
    let item: TokenStream = item
        .into_iter()
        .map(|mut token| {
            token.set_span(last);
            token
        })
        .collect();
    quote!(#open #ty as #krate::__private::Field #close #item)
}

/// The parameter of a method that takes a value of the type, and the value itself.
pub fn taken(ty: &TokenStream, converts: bool) -> (TokenStream, TokenStream) {
    let into = crate::quote!(::core::convert::Into);
    match converts {
        true => (crate::quote!(impl #into<#ty>), crate::quote!(#into::<#ty>::into(value))),
        false => (ty.clone(), crate::quote!(value)),
    }
}

/// Assertions that stop the compiler at a field of a struct. `owner` is as for [`offset`].
pub fn assertions(input: &Input, owner: &TokenStream) -> TokenStream {
    let ident = &input.ident;
    let wrong = wrong(input);
    let fields = assertions_of(input, |i| quote!(<#ident as #owner>::SCHEMA.offset(#i)));
    quote!(#wrong #fields)
}

/// The assertions of fields that begin where `at` says, for beside [`wrong`].
pub fn assertions_of(input: &Input, at: impl Fn(usize) -> TokenStream) -> TokenStream {
    let krate = &input.krate;
    let wire = quote!(#krate::__private::wire);
    let fields = input.members.iter().enumerate().map(|(i, m)| {
        let ty = asked(input, m, quote!(FIELD_TYPE));
        let at = at(i);
        quote_spanned! {m.span=>
            const _: () = {
                let ty = #ty;
                let wrong = wrong(&ty, 0);
                if !wrong.is_empty() {
                    ::core::panic!("{}", wrong);
                }
                // Of the fields that end too late, the first one is to blame.
                let at = #at;
                let max = #wire::page::OBJECT_BYTES_MAX - #wire::record::HEADER_BYTES;
                ::core::assert!(
                    at > max || at + ty.size() <= max,
                    "up to this field the object has more than the 8,016 bytes that fit into a page: \
                     move some behind a reference, or into a text, byte string or list",
                );
            };
        }
    });
    quote!(#(#fields)*)
}

/// A function that says what is wrong with a type.
pub fn wrong(input: &Input) -> TokenStream {
    let krate = &input.krate;
    let wire = quote!(#krate::__private::wire);
    quote! {
        #[allow(dead_code)]
        const fn wrong(ty: &#wire::schema::Type, depth: ::core::primitive::usize) -> &'static ::core::primitive::str {
            use #wire::schema::Type;
            if depth > #wire::layout::DEPTH_MAX {
                return "lists, options and records nest at most 4 deep";
            }
            match ty {
                Type::Option(Type::Option(_)) => "an option of an option means nothing: use one",
                Type::Option(inner) | Type::List(inner) => wrong(inner, depth + 1),
                Type::Array(_, 0) => "an array has at least one element",
                Type::Record(record) => {
                    let mut i = 0;
                    while i < record.fields.len() {
                        let inner = wrong(&record.fields[i].ty, depth + 1);
                        if !inner.is_empty() {
                            return inner;
                        }
                        i += 1;
                    }
                    ""
                }
                Type::Enum(variants) => {
                    let mut i = 0;
                    while i < variants.fields.len() {
                        // A variant's record is the enum's own depth, and its number as deep as its fields.
                        let depth = if i == 0 { depth + 1 } else { depth };
                        let inner = wrong(&variants.fields[i].ty, depth);
                        if !inner.is_empty() {
                            return inner;
                        }
                        i += 1;
                    }
                    ""
                }
                _ => "",
            }
        }
    }
}
