//! `#[interface]`: a trait of methods becomes one that a class implements, and one that callers have.
//!
//! The methods are declared as their callers see them, with a receiver. Implementations are given the object
//! in the receiver's place, for it belongs to a transaction; the trait for callers is implemented for
//! handles. A method that is `#[internal]` is in the first trait alone: it has no number, so no message of
//! a connection can mean it.

use proc_macro2::TokenStream;
use quote::format_ident;
use syn::ext::IdentExt;
use syn::{Ident, Path};

use crate::method::{ArgKind, Method, Trait};
use crate::quote;

/// The code that it becomes.
pub fn expand(of: &Trait) -> TokenStream {
    let Trait { ident, vis, krate, name, docs, methods, internal } = of;
    let private = quote!(#krate::__private);
    let calls = format_ident!("{}Calls", ident.unraw());
    let schemas = methods.iter().map(|m| m.schema(&private));
    let functions = methods.iter().chain(internal).map(|m| function(m, krate));
    let arms = methods.iter().map(|m| arm(m, ident, &private));
    let declared = methods.iter().map(|m| m.declared(&private));
    let called = methods.iter().map(|m| called(m, ident, krate));
    let calls_doc =
        format!("Calls of the methods of [`{}`], which a handle of an object has.", ident.unraw());
    quote! {
        #(#docs)*
        #vis trait #ident: #krate::__private::Object {
            #(#functions)*

            /// These methods of this class, for a server to run.
            const METHODS: #krate::__private::Methods =
                #private::Methods::new(Self::__SCHEMA, <Self as #private::wire::record::Class>::NAME, Self::__run);

            #[doc(hidden)]
            const __SCHEMA: &'static #private::wire::interface::InterfaceSchema =
                &#private::wire::interface::InterfaceSchema { name: #name, methods: &[#(#schemas),*] };

            #[doc(hidden)]
            #[allow(unused_variables, clippy::clone_on_copy, clippy::unit_arg, clippy::let_unit_value)]
            fn __run(
                tx: &#krate::__private::Tx<'_>,
                method: ::core::primitive::usize,
                object: #krate::__private::Ref<#krate::__private::Any>,
                given: &#private::Given<'_>,
                out: &mut ::std::vec::Vec<::core::primitive::u8>,
            ) -> ::core::result::Result<#private::Ended, #private::Error> {
                let this = tx.get(object.cast::<Self>())?;
                match method {
                    #(#arms)*
                    _ => ::core::result::Result::Err(#private::no_method(#name)),
                }
            }
        }

        #[doc = #calls_doc]
        #vis trait #calls {
            #(#declared)*
        }

        impl<__Class: #ident> #calls for #krate::__private::Handle<'_, __Class> {
            #(#called)*
        }
    }
}

/// The line of a method in the trait that a class implements.
fn function(m: &Method, krate: &Path) -> TokenStream {
    let Method { ident, docs, cfg, .. } = m;
    let (output, params) = (m.output(&quote!(#krate::__private)), m.params());
    quote! {
        #(#cfg)* #(#docs)*
        fn #ident(this: &#krate::__private::Obj<'_, Self>, #(#params),*) -> #output;
    }
}

/// Runs it at a server.
fn arm(m: &Method, interface: &Ident, private: &TokenStream) -> TokenStream {
    let Method { ident, cfg, number, .. } = m;
    let (when, reads) = (m.when(), m.read_args(&takes(m, &quote!(Self))));
    let (put_gives, put_fails) = m.put_ends(private);
    quote! {
        #(#cfg)* #when => {
            let called = <Self as #interface>::#ident(&this, #(#reads),*);
            let schema = &Self::__SCHEMA.methods[#number];
            #private::finish(called, schema, |gives, e| { #put_gives }, |fails, e| { #put_fails }, out)
        }
    }
}

/// The record of what it takes, of a class.
fn takes(m: &Method, class: &TokenStream) -> TokenStream {
    let number = &m.number;
    quote!(#class::__SCHEMA.methods[#number].takes.record())
}

/// Calls it through a handle.
fn called(m: &Method, interface: &Ident, krate: &Path) -> TokenStream {
    let private = quote!(#krate::__private);
    let Method { ident, cfg, number, .. } = m;
    let (output, params) = (m.output(&private), m.params());
    let given = m.args.iter().map(|a| {
        let ident = &a.ident;
        match a.kind {
            ArgKind::Value => quote!(::core::clone::Clone::clone(&#ident)),
            ArgKind::Text | ArgKind::Bytes | ArgKind::Lent => quote!(#ident),
        }
    });
    let puts = m.put_args(&takes(m, &quote!(__Class)), &private);
    let (gives, fails) = m.read_ends(&private);
    quote! {
        #(#cfg)*
        #[inline]
        #[allow(unused_variables, clippy::clone_on_copy, clippy::unit_arg, clippy::let_unit_value)]
        fn #ident(&self, #(#params),*) -> #output {
            self.__call(
                &#private::Stub { schema: __Class::__SCHEMA, method: #number },
                |this| <__Class as #interface>::#ident(this, #(#given),*),
                |e| { #(#puts)* },
                |given| #gives,
                |given| #fails,
            )
        }
    }
}
