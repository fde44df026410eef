//! `#[service]`: a trait of procedures becomes one that a server implements, and one that callers have.
//!
//! The procedures are declared as their callers see them. Implementations are told of the call, too: the
//! context is the first argument. The trait for callers is implemented for handles of the service, whose name
//! is that of the trait.

use proc_macro2::TokenStream;
use quote::format_ident;
use syn::Ident;
use syn::ext::IdentExt;

use crate::method::{Method, Trait};
use crate::quote;

/// The code that it becomes.
pub fn expand(of: &Trait) -> TokenStream {
    let Trait { ident, vis, krate, name, docs, methods, .. } = of;
    let private = quote!(#krate::__private);
    let calls = format_ident!("{}Calls", ident.unraw());
    // A streaming call belongs to its client, and outlives the handle that began it.
    let client = if methods.iter().any(Method::gives_streaming) { quote!(<'client>) } else { quote!() };
    let schemas = methods.iter().map(|m| m.schema(&private));
    let functions = methods.iter().map(|m| function(m, &private));
    let arms = methods.iter().map(|m| arm(m, ident, &private));
    let declared = methods.iter().map(|m| declared(m, &private));
    let called = methods.iter().map(|m| called(m, ident, &private));
    let lent = methods.iter().map(|m| {
        let (cfg, is_lent) = (&m.cfg, m.is_lent());
        quote!(#(#cfg)* #is_lent)
    });
    let pipelined = pipelined(of, &private);
    let calls_doc = format!("Calls of the service [`{}`], which a handle of it has.", ident.unraw());
    quote! {
        #(#docs)*
        #vis trait #ident: ::core::marker::Send + ::core::marker::Sync + 'static {
            #(#functions)*

            /// This implementation, for a server to offer.
            fn serve(self) -> #private::Service
            where
                Self: ::core::marker::Sized,
            {
                #private::Service::new::<dyn #ident>(
                    #[allow(unused_variables, clippy::unit_arg, clippy::let_unit_value)]
                    move |cx, method, given, out| match method {
                        #(#arms)*
                        _ => ::core::result::Result::Err(#private::no_method(#name)),
                    },
                )
            }
        }

        impl #private::ServiceInterface for dyn #ident {
            const SCHEMA: &'static #private::wire::interface::InterfaceSchema =
                &#private::wire::interface::InterfaceSchema { name: #name, methods: &[#(#schemas),*] };
            const LENT: &'static [bool] = &[#(#lent),*];
        }

        #[doc = #calls_doc]
        #vis trait #calls #client {
            #(#declared)*
        }

        impl<'client> #calls #client for #private::ServiceHandle<'client, dyn #ident> {
            #(#called)*
        }

        #pipelined
    }
}

/// Calls that are begun without waiting, of procedures that have one answer and nothing beside.
fn pipelined(of: &Trait, private: &TokenStream) -> TokenStream {
    let has_answer = |m: &&Method| !m.is_one_way && !m.gives_streaming() && m.streams.callback().is_none();
    let (ident, vis) = (&of.ident, &of.vis);
    let begins = format_ident!("{}Pipelined", ident.unraw());
    let all = || of.methods.iter().filter(has_answer);
    if all().next().is_none() {
        return quote!();
    }
    let begin = |m: &Method| {
        let (name, lent, params, (gives, fails)) =
            (&m.ident, m.lifetimes_here(), m.params_here(private), m.ends());
        let pending = quote!(#private::Pending<'client, #gives, #fails>);
        quote!(fn #name #lent(&self, #(#params),*) -> ::core::result::Result<#pending, #private::Error>)
    };
    let declared = all().map(|m| {
        let (docs, cfg, head) = (&m.docs, &m.cfg, begin(m));
        quote! { #(#cfg)* #(#docs)* #head; }
    });
    let called = all().map(|m| {
        let (head, lendings) = (begin(m), m.lendings(private));
        let (cfg, number) = (&m.cfg, &m.number);
        let puts = m.put_args(&takes(m, ident, private), private);
        let (gives, fails) = m.read_ends(private);
        quote! {
            #(#cfg)*
            #[allow(unused_variables, clippy::unit_arg)]
            #head {
                #(#lendings)*
                let reads = #private::Reads { gives: |given| #gives, fails: |given| #fails };
                self.__begin(#number, |e| { #(#puts)* }, reads)
            }
        }
    });
    let doc = format!("Calls of the service [`{}`] that are begun without waiting.", ident.unraw());
    quote! {
        #[doc = #doc]
        #[allow(dead_code)]
        #vis trait #begins<'client> {
            #(#declared)*
        }

        impl<'client> #begins<'client> for #private::Pipelined<'client, dyn #ident> {
            #(#called)*
        }
    }
}

/// The line of a procedure in the trait that a server implements.
fn function(m: &Method, private: &TokenStream) -> TokenStream {
    let (Method { ident, docs, cfg, .. }, params) = (m, m.params_there());
    let output = m.output(private);
    let output = if m.is_one_way { quote!() } else { quote!(-> #output) };
    quote! {
        #(#cfg)* #(#docs)*
        fn #ident(&self, cx: &#private::Context<'_>, #(#params),*) #output;
    }
}

/// Runs it at a server.
fn arm(m: &Method, service: &Ident, private: &TokenStream) -> TokenStream {
    let Method { ident, cfg, number, .. } = m;
    let (when, reads) = (m.when(), m.read_args_there(&takes(m, service, private), private));
    let (put_gives, put_fails) = m.put_ends(private);
    let run = quote!(<Self as #service>::#ident(&self, cx, #(#reads),*));
    let run = match m.is_one_way {
        true => quote!(#run; ::core::result::Result::Ok(#private::Ended::Returned)),
        false => quote! {
            let called = #run;
            let schema = &<dyn #service as #private::ServiceInterface>::SCHEMA.methods[#number];
            #private::finish_in(called, schema, |gives, e| { #put_gives }, |fails, e| { #put_fails }, out)
        },
    };
    quote!(#(#cfg)* #when => { #run })
}

/// The record of what it takes.
fn takes(m: &Method, service: &Ident, private: &TokenStream) -> TokenStream {
    let number = &m.number;
    quote!(<dyn #service as #private::ServiceInterface>::SCHEMA.methods[#number].takes.record())
}

/// The head of a procedure in the trait for callers: streams are a value, questions end with a function.
fn head(m: &Method, private: &TokenStream) -> TokenStream {
    let (ident, output, params) = (&m.ident, m.output(private), m.params_here(private));
    let lent = m.lifetimes_here();
    if let Some((ask, question, answer)) = m.streams.callback() {
        let ask = quote!(#ask: impl ::core::ops::FnMut(#question) -> #answer);
        return quote!(fn #ident #lent(&self, #(#params,)* #ask) -> #output);
    }
    if !m.gives_streaming() {
        return quote!(fn #ident #lent(&self, #(#params),*) -> #output);
    }
    let ((sent, read), (gives, fails)) = (m.streams.items(), m.ends());
    let streaming = quote!(#private::Streaming<'client, #sent, #read, #gives, #fails>);
    quote!(fn #ident #lent(&self, #(#params),*) -> ::core::result::Result<#streaming, #private::Error>)
}

/// The line of a procedure in the trait for callers.
fn declared(m: &Method, private: &TokenStream) -> TokenStream {
    let (Method { docs, cfg, .. }, head) = (m, head(m, private));
    quote! {
        #(#cfg)* #(#docs)*
        #head;
    }
}

/// Calls it through a handle.
fn called(m: &Method, service: &Ident, private: &TokenStream) -> TokenStream {
    let (Method { cfg, number, .. }, head, lendings) = (m, head(m, private), m.lendings(private));
    let puts = m.put_args(&takes(m, service, private), private);
    let (gives, fails) = m.read_ends(private);
    let reads = quote!(#private::Reads { gives: |given| #gives, fails: |given| #fails });
    let call = match (m.is_one_way, m.streams.callback()) {
        (true, _) => quote!(self.__tell(#number, |e| { #(#puts)* })),
        (_, Some((ask, ..))) => quote!(self.__call_back(#number, |e| { #(#puts)* }, #reads, #ask)),
        _ if m.gives_streaming() => quote!(self.__stream(#number, |e| { #(#puts)* }, #reads)),
        _ => quote!(self.__call(#number, |e| { #(#puts)* }, |given| #gives, |given| #fails)),
    };
    quote! {
        #(#cfg)*
        #[inline]
        #[allow(unused_variables, clippy::unit_arg)]
        #head {
            #(#lendings)*
            #call
        }
    }
}
