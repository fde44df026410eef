//! `#[derive(Key)]`: a struct of one field, which is a key of maps as its field is.

use proc_macro2::TokenStream;
use syn::spanned::Spanned;
use syn::{Data, DeriveInput, Error, Member, Result};

use crate::input::crate_of;
use crate::quote;

/// The code of the derive.
pub fn key(input: &DeriveInput) -> Result<TokenStream> {
    let krate = crate_of(&input.attrs)?;
    let ident = &input.ident;
    let not_one =
        |what: &str| Error::new(ident.span(), format!("a key is a struct of one field, and this is {what}"));
    let fields = match &input.data {
        Data::Struct(data) => &data.fields,
        Data::Enum(_) => return Err(not_one("an enum")),
        Data::Union(_) => return Err(not_one("a union")),
    };
    if !input.generics.params.is_empty() {
        return Err(Error::new_spanned(&input.generics.params, "a key has no parameters: its form is one"));
    }
    let mut all = fields.iter();
    let (Some(field), None) = (all.next(), all.next()) else {
        let what = if fields.is_empty() { "one of none" } else { "one of several: put them into a tuple" };
        return Err(not_one(what));
    };
    let member = field.ident.clone().map_or(Member::Unnamed(0.into()), Member::Named);
    let ty = &field.ty;
    let key = quote!(#krate::collections::key);
    // At the type itself, so that an error of the compiler points there.
    let inner = quote::quote_spanned!(ty.span()=> <#ty as #key::Key>);
    Ok(quote! {
        #[automatically_derived]
        impl #key::Key for #ident {
            type Arg<'k> = &'k #ident;
            const SHAPE: #key::Shape = #inner::SHAPE;
            const BYTES: ::core::option::Option<::core::primitive::usize> = #inner::BYTES;

            fn arg(&self) -> Self::Arg<'_> {
                self
            }

            fn put(key: Self::Arg<'_>, form: #key::Form, to: &mut #key::KeyBytes) {
                #inner::put(#inner::arg(&key.#member), form, to)
            }

            fn take(
                from: &mut &[::core::primitive::u8],
                form: #key::Form,
            ) -> ::core::result::Result<Self, #key::BadKey> {
                ::core::result::Result::Ok(#ident { #member: #inner::take(from, form)? })
            }
        }
    })
}
