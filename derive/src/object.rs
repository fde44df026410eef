//! `#[derive(Object)]`: a class, and the two types that read and change its objects.
//!
//! Everything but these two types stands in an anonymous constant and names what it uses by full path: the
//! module of the struct gains two names and loses none.

use proc_macro2::{Delimiter, Group, TokenStream};
use quote::format_ident;
use syn::Ident;
use syn::ext::IdentExt;

use crate::input::{Input, docs};
use crate::quote;
use crate::schema::{asked, assertions, offset, schema, taken};
use crate::table::{self, Table};

/// The code of the derive.
pub fn object(input: &Input, rows: Option<&Table>) -> TokenStream {
    let (ident, vis, krate) = (&input.ident, &input.vis, &input.krate);
    let private = quote!(#krate::__private);
    let view = format_ident!("{}View", ident);
    let edit = format_ident!("{}Mut", ident);
    let view_doc = format!("Reads an object of class [`{}`]: a method for each field.", ident.unraw());
    let edit_doc = format!("Changes an object of class [`{}`]: a setter for each field.", ident.unraw());
    let class = class(input);
    let object = implementation(input, rows, &view, &edit);
    let getters = getters(input, &view);
    let setters = setters(input, rows, &view, &edit);
    let pushes = pushes(input, &view, &edit);
    let assertions = assertions(input, &owner(input));
    let guard = rows.map(|_| table::guard(input));
    let table = rows.map(|rows| table::table(input, rows, &owner(input)));
    quote! {
        #guard

        #[doc = #view_doc]
        #vis struct #view<'t>(#private::RawObj<'t, #ident>);

        #[doc = #edit_doc]
        #vis struct #edit<'t>(#private::RawMut<'t, #ident>);

        const _: () = {
            #class
            #object
            #getters
            #setters
            #pushes
            #table
            #assertions
        };
    }
}

/// The trait that has the schema.
fn owner(input: &Input) -> TokenStream {
    let krate = &input.krate;
    quote!(#krate::__private::wire::record::Class)
}

fn class(input: &Input) -> TokenStream {
    let (ident, name, krate) = (&input.ident, &input.name, &input.krate);
    let record = quote!(#krate::__private::wire::record);
    let schema_type = quote!(#krate::__private::wire::schema::Schema);
    let schema = schema(input);
    let puts = input.members.iter().enumerate().map(|(i, m)| {
        let field = &m.ident;
        let at = offset(input, &owner(input), i);
        let put = asked(input, m, quote!(put_field));
        quote!(#put(&self.#field, e, #at);)
    });
    quote! {
        #[automatically_derived]
        impl #record::Class for #ident {
            const NAME: &'static ::core::primitive::str = #name;

            const SCHEMA: #schema_type = #schema;

            #[allow(deprecated)]
            fn encode(&self, e: &mut #record::Encoder<'_>) {
                #(#puts)*
            }
        }
    }
}

fn implementation(input: &Input, rows: Option<&Table>, view: &Ident, edit: &Ident) -> TokenStream {
    let (ident, krate) = (&input.ident, &input.krate);
    let private = quote!(#krate::__private);
    let is_row = rows.map(|_| {
        quote!(
            const IS_ROW: ::core::primitive::bool = true;
        )
    });
    let loads = input.members.iter().enumerate().map(|(i, m)| {
        let field = &m.ident;
        let at = offset(input, &owner(input), i);
        let load = asked(input, m, quote!(load));
        quote!(#field: #load(stored, #at)?,)
    });
    quote! {
        // SAFETY: the static is inside this function, where no other code can name it, and the type is not
        // generic.
        #[automatically_derived]
        unsafe impl #private::Typed for #ident {
            #[inline]
            fn index() -> &'static #private::TypeIndex {
                static INDEX: #private::TypeIndex = #private::TypeIndex::new();
                &INDEX
            }
        }

        #[automatically_derived]
        impl #private::Object for #ident {
            type View<'t> = #view<'t>;
            type Mut<'t> = #edit<'t>;

            #is_row

            #[inline]
            fn view<'t>(raw: #private::RawObj<'t, #ident>) -> #view<'t> {
                #view(raw)
            }

            // The projection, as in the trait: with the type's own name the lifetime would be bound at
            // another time.
            #[inline]
            fn raw<'a, 't>(view: &'a Self::View<'t>) -> &'a #private::RawObj<'t, #ident> {
                &view.0
            }

            #[inline]
            fn edit<'t>(raw: #private::RawMut<'t, #ident>) -> #edit<'t> {
                #edit(raw)
            }

            #[allow(deprecated)]
            fn load(stored: &#private::Stored<'_>) -> ::core::result::Result<#ident, #private::Error> {
                ::core::result::Result::Ok(#ident { #(#loads)* })
            }
        }
    }
}

fn getters(input: &Input, view: &Ident) -> TokenStream {
    let owned_by = &input.ident;
    let getters = input.members.iter().enumerate().map(|(i, m)| {
        let (field, vis, docs) = (&m.ident, &m.vis, docs(m));
        let at = offset(input, &owner(input), i);
        let got = asked(input, m, quote!(Got<'_, 't, #owned_by>));
        let get = asked(input, m, quote!(got));
        let mut args = Group::new(Delimiter::Parenthesis, quote!(&self.0, #at));
        args.set_span(m.span);
        quote! {
            #docs
            #[inline]
            #vis fn #field(&self) -> #got {
                #get #args
            }
        }
    });
    quote! {
        #[allow(dead_code, private_interfaces, non_snake_case, clippy::all)]
        impl<'t> #view<'t> {
            #(#getters)*
        }
    }
}

fn setters(input: &Input, rows: Option<&Table>, view: &Ident, edit: &Ident) -> TokenStream {
    let (ident, vis, krate) = (&input.ident, &input.vis, &input.krate);
    let private = quote!(#krate::__private);
    // A field that a key is made of changes only with the key.
    let is_free = |i: usize| rows.is_none_or(|rows| !rows.has(i));
    let setters = input.members.iter().enumerate().filter(|(i, _)| is_free(*i)).map(|(i, m)| {
        let (field, ty, field_vis) = (&m.ident, &m.ty, &m.vis);
        let setter = format_ident!("set_{}", field);
        let doc = format!("Sets [`{}`]({}::{}).", m.name(), view, m.name());
        let at = offset(input, &owner(input), i);
        let (takes, value) = taken(ty, m.converts);
        let set = asked(input, m, quote!(set_field));
        let result = quote!(::core::result::Result<(), #private::Error>);
        quote! {
            #[doc = #doc]
            #field_vis fn #setter(&self, value: #takes) -> #result {
                #set(#value, &self.0, #i, #at)
            }
        }
    });
    // Setters of a view exist to be refused, in words that say what to call.
    let refused = input.members.iter().map(|m| {
        let (setter, field_vis) = (format_ident!("set_{}", m.ident), &m.vis);
        quote! {
            #[doc(hidden)]
            #field_vis fn #setter<V: #private::SetByEditors>(&self, value: V) -> ::core::result::Result<(), #private::Error> {
                value.never()
            }
        }
    });
    quote! {
        #[allow(dead_code, private_interfaces, non_snake_case, clippy::all)]
        impl<'t> #edit<'t> {
            /// The object's reference, to keep or to write into other objects.
            #vis fn reference(&self) -> #private::wire::record::Ref<#ident> {
                self.0.reference()
            }

            #(#setters)*
        }

        #[allow(dead_code, private_interfaces, non_snake_case, clippy::all)]
        impl<'t> #view<'t> {
            #(#refused)*
        }
    }
}

/// For each list a method that puts one element behind the others.
fn pushes(input: &Input, view: &Ident, edit: &Ident) -> TokenStream {
    let private = {
        let krate = &input.krate;
        quote!(#krate::__private)
    };
    let pushes = input.members.iter().enumerate().filter_map(|(i, m)| {
        let element = m.element.as_ref()?;
        let vis = &m.vis;
        let push = format_ident!("push_{}", m.ident);
        let doc = format!("Puts an element behind those of [`{}`]({}::{}).", m.name(), view, m.name());
        let at = offset(input, &owner(input), i);
        let (takes, value) = taken(&element.ty, element.converts);
        let append = asked(input, m, quote!(append_field));
        let result = quote!(::core::result::Result<(), #private::Error>);
        Some(quote! {
            #[doc = #doc]
            #vis fn #push(&self, value: #takes) -> #result {
                #append(::core::convert::From::from([#value]), &self.0, #i, #at)
            }
        })
    });
    quote! {
        #[allow(dead_code, private_interfaces, non_snake_case, clippy::all)]
        impl<'t> #edit<'t> {
            #(#pushes)*
        }
    }
}
