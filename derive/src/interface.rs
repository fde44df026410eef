//! `#[interface]`: a trait of methods becomes one that a class implements, and one that callers have.
//!
//! The methods are declared as their callers see them, with a receiver. Implementations are given the object in the receiver's
//! place, for it belongs to a transaction; the trait for callers is implemented for handles.

use proc_macro2::TokenStream;
use quote::{format_ident, quote};
use syn::ext::IdentExt;
use syn::parse::{Parse, ParseStream};
use syn::spanned::Spanned;
use syn::{
    Attribute, Error, FnArg, GenericArgument, Ident, ItemTrait, LitStr, Pat, Path, PathArguments, Receiver,
    ReceiverKind, Result, ReturnType, Safety, Token, TraitItem, TraitItemFn, Type, Visibility,
};

/// What stands in the parentheses of the attribute.
#[derive(Default)]
pub struct Options {
    name: Option<String>,
    krate: Option<Path>,
}

impl Parse for Options {
    fn parse(input: ParseStream<'_>) -> Result<Options> {
        let mut options = Options::default();
        while !input.is_empty() {
            let key = Ident::parse_any(input)?;
            input.parse::<Token![=]>()?;
            let value: LitStr = input.parse()?;
            match key.to_string().as_str() {
                "name" if (1..=NAME_BYTES_MAX).contains(&value.value().len()) => {
                    options.name = Some(value.value())
                }
                "name" => {
                    return Err(Error::new(value.span(), "the name of an interface has 1 to 128 bytes"));
                }
                "crate" => options.krate = Some(value.parse()?),
                _ => {
                    return Err(Error::new(
                        key.span(),
                        "unknown attribute: an interface takes `name` and `crate`",
                    ));
                }
            }
            if !input.is_empty() {
                input.parse::<Token![,]>()?;
            }
        }
        Ok(options)
    }
}

const NAME_BYTES_MAX: usize = 128;
const METHODS_MAX: usize = 256;

/// A trait that can become an interface.
pub struct Interface {
    ident: Ident,
    vis: Visibility,
    docs: Vec<Attribute>,
    name: String,
    krate: Path,
    methods: Vec<Method>,
}

struct Method {
    ident: Ident,
    docs: Vec<Attribute>,
    reads: bool,
    args: Vec<Arg>,
    /// What it gives; none for `()`.
    gives: Option<Type>,
    /// What it fails with.
    fails: Option<Type>,
}

struct Arg {
    ident: Ident,
    ty: Type,
    kind: ArgKind,
}

/// How an argument is handed over.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ArgKind {
    /// `&str`, in place.
    Text,
    /// `&[u8]`, in place.
    Bytes,
    /// A value.
    Value,
}

impl Interface {
    /// Reads a trait.
    ///
    /// # Errors
    /// Everything that is wrong with it, each where it must change.
    pub fn parse(options: Options, item: ItemTrait) -> Result<Interface> {
        let mut wrong: Option<Error> = None;
        let mut add = |e: Error| match &mut wrong {
            None => wrong = Some(e),
            Some(all) => all.combine(e),
        };
        if !item.generics.params.is_empty() || item.generics.where_clause.is_some() {
            add(Error::new_spanned(
                &item.generics,
                "an interface has no parameters: both ends must know it by its name",
            ));
        }
        if !item.supertraits.is_empty() {
            add(Error::new_spanned(
                &item.supertraits,
                "an interface stands alone: every class of objects can have it",
            ));
        }
        let mut methods = Vec::new();
        for item in &item.items {
            match item {
                TraitItem::Fn(f) => match Method::parse(f) {
                    Ok(method) => methods.push(method),
                    Err(e) => add(e),
                },
                other => add(Error::new_spanned(other, "an interface has methods alone")),
            }
        }
        if item.items.is_empty() || item.items.len() > METHODS_MAX {
            add(Error::new(item.ident.span(), format!("an interface has 1 to {METHODS_MAX} methods")));
        }
        if let Some(wrong) = wrong {
            return Err(wrong);
        }
        Ok(Interface {
            name: options.name.unwrap_or_else(|| item.ident.unraw().to_string()),
            krate: options.krate.unwrap_or_else(|| syn::parse_quote!(::tercel)),
            docs: item.attrs.into_iter().filter(|a| a.path().is_ident("doc")).collect(),
            ident: item.ident,
            vis: item.vis,
            methods,
        })
    }

    /// The code that it becomes.
    pub fn expand(&self) -> TokenStream {
        let (ident, vis, krate, name, docs) = (&self.ident, &self.vis, &self.krate, &self.name, &self.docs);
        let private = quote!(#krate::__private);
        let calls = format_ident!("{}Calls", ident.unraw());
        let schemas = self.methods.iter().map(|m| m.schema(&private));
        let functions = self.methods.iter().map(|m| m.function(krate));
        let arms = self.methods.iter().enumerate().map(|(i, m)| m.arm(i, ident, &private));
        let declared = self.methods.iter().map(|m| m.declared(krate));
        let called = self.methods.iter().enumerate().map(|(i, m)| m.called(i, ident, krate));
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

            impl<T: #ident> #calls for #krate::__private::Handle<'_, T> {
                #(#called)*
            }
        }
    }
}

impl Method {
    fn parse(f: &TraitItemFn) -> Result<Method> {
        let sig = &f.sig;
        if let Some(body) = &f.default {
            return Err(Error::new_spanned(
                body,
                "a method of an interface has no body: a class implements it",
            ));
        }
        if !sig.generics.params.is_empty()
            || sig.asyncness.is_some()
            || !matches!(sig.safety, Safety::Default)
        {
            return Err(Error::new_spanned(
                sig,
                "a method of an interface has no parameters, and is not `async` or `unsafe`",
            ));
        }
        let reads = f.attrs.iter().any(|a| a.path().is_ident("read"));
        let other = f.attrs.iter().find(|a| !a.path().is_ident("read") && !a.path().is_ident("doc"));
        if let Some(other) = other {
            return Err(Error::new_spanned(other, "unknown attribute: a method takes `#[read]`"));
        }
        let mut inputs = sig.inputs.iter();
        let receiver = inputs.next();
        match (reads, receiver.and_then(is_mutable)) {
            (true, Some(false)) | (false, Some(true)) => {}
            (true, Some(true)) => {
                return Err(Error::new_spanned(receiver, "a method that only reads takes `&self`"));
            }
            (false, Some(false)) => {
                return Err(Error::new_spanned(
                    receiver,
                    "a method that writes takes `&mut self`; one that only reads is declared `#[read]`",
                ));
            }
            (_, None) => {
                return Err(Error::new(
                    sig.ident.span(),
                    "a method of an interface begins with `&self`, and `#[read]` before it, or with `&mut self`",
                ));
            }
        }
        let args = inputs.map(Arg::parse).collect::<Result<_>>()?;
        let (gives, fails) = match &sig.output {
            ReturnType::Default => (None, None),
            ReturnType::Type(_, ty) => match result_of(ty) {
                Some((gives, fails)) => (Some(gives.clone()), Some(fails.clone())),
                None => (Some((**ty).clone()), None),
            },
        };
        let gives = gives.filter(|ty| !matches!(ty, Type::Tuple(t) if t.elems.is_empty()));
        if let Some(Type::Reference(r)) = &gives {
            return Err(Error::new_spanned(
                r,
                "a method gives a value: write `Text`, `Bytes` or another type of a field",
            ));
        }
        let docs = f.attrs.iter().filter(|a| a.path().is_ident("doc")).cloned().collect();
        Ok(Method { ident: sig.ident.clone(), docs, reads, args, gives, fails })
    }

    /// What a call of it gives.
    fn output(&self, krate: &Path) -> TokenStream {
        let gives = self.gives.as_ref().map_or(quote!(()), |ty| quote!(#ty));
        match &self.fails {
            Some(fails) => quote!(#krate::__private::Called<#gives, #fails>),
            None => quote!(#krate::__private::Called<#gives>),
        }
    }

    fn params(&self) -> impl Iterator<Item = TokenStream> + '_ {
        self.args.iter().map(|Arg { ident, ty, .. }| quote!(#ident: #ty))
    }

    fn function(&self, krate: &Path) -> TokenStream {
        let (ident, docs, output, params) = (&self.ident, &self.docs, self.output(krate), self.params());
        quote! {
            #(#docs)*
            fn #ident(this: &#krate::__private::Obj<'_, Self>, #(#params),*) -> #output;
        }
    }

    fn declared(&self, krate: &Path) -> TokenStream {
        let (ident, docs, output, params) = (&self.ident, &self.docs, self.output(krate), self.params());
        quote! {
            #(#docs)*
            fn #ident(&self, #(#params),*) -> #output;
        }
    }

    fn takes(&self, private: &TokenStream) -> TokenStream {
        let fields = self.args.iter().map(|a| {
            let name = a.ident.unraw().to_string();
            let ty = a.field_type(private);
            quote!(#private::wire::schema::Field { name: #name, ty: #ty })
        });
        schema(&self.ident, quote!(#(#fields),*), private)
    }

    fn one(&self, name: &str, ty: Option<&Type>, private: &TokenStream) -> TokenStream {
        let field = ty.map(|ty| {
            quote!(#private::wire::schema::Field { name: #name, ty: <#ty as #private::Field>::FIELD_TYPE })
        });
        schema(&self.ident, quote!(#field), private)
    }

    fn schema(&self, private: &TokenStream) -> TokenStream {
        let (name, reads, takes) = (self.ident.unraw().to_string(), self.reads, self.takes(private));
        let gives = self.one("result", self.gives.as_ref(), private);
        let fails = self.one("error", self.fails.as_ref(), private);
        quote! {
            #private::wire::interface::MethodSchema {
                name: #name, reads: #reads, takes: #takes, gives: #gives, fails: #fails,
            }
        }
    }

    /// Runs it at a server.
    fn arm(&self, number: usize, interface: &Ident, private: &TokenStream) -> TokenStream {
        let ident = &self.ident;
        let takes = self.takes(private);
        let reads = self.args.iter().enumerate().map(|(i, a)| {
            let ty = &a.ty;
            let at = quote!(const { __TAKES.offset(#i) });
            match a.kind {
                ArgKind::Text => quote!(given.text(#at)?),
                ArgKind::Bytes => quote!(given.bytes(#at)?),
                ArgKind::Value => quote!(given.value::<#ty>(#at)?),
            }
        });
        let put_gives =
            self.gives.as_ref().map(|ty| quote!(<#ty as #private::Field>::put_field(gives, e, 0);));
        let put_fails = match &self.fails {
            Some(ty) => quote!(<#ty as #private::Field>::put_field(fails, e, 0)),
            None => quote!(match *fails {}),
        };
        quote! {
            #number => {
                const __TAKES: #private::wire::schema::Schema = #takes;
                let called = <Self as #interface>::#ident(&this, #(#reads),*);
                let schema = &Self::__SCHEMA.methods[#number];
                #private::finish(called, schema, |gives, e| { #put_gives }, |fails, e| { #put_fails }, out)
            }
        }
    }

    /// Calls it through a handle.
    fn called(&self, number: usize, interface: &Ident, krate: &Path) -> TokenStream {
        let private = quote!(#krate::__private);
        let (ident, output, params, takes) =
            (&self.ident, self.output(krate), self.params(), self.takes(&private));
        let given = self.args.iter().map(|a| {
            let ident = &a.ident;
            match a.kind {
                ArgKind::Value => quote!(::core::clone::Clone::clone(&#ident)),
                ArgKind::Text | ArgKind::Bytes => quote!(#ident),
            }
        });
        let puts = self.args.iter().enumerate().map(|(i, a)| {
            let (ident, ty) = (&a.ident, &a.ty);
            let at = quote!(const { __TAKES.offset(#i) });
            match a.kind {
                ArgKind::Value => quote!(<#ty as #private::Field>::put_field(&#ident, e, #at);),
                ArgKind::Text | ArgKind::Bytes => quote!(#private::put_bytes(#ident, e, #at);),
            }
        });
        let gives = self
            .gives
            .as_ref()
            .map_or(quote!(::core::result::Result::Ok(())), |ty| quote!(given.value::<#ty>(0)));
        let fails =
            self.fails.as_ref().map_or(quote!(#private::never(given)), |ty| quote!(given.value::<#ty>(0)));
        quote! {
            #[inline]
            #[allow(unused_variables, clippy::clone_on_copy, clippy::unit_arg, clippy::let_unit_value)]
            fn #ident(&self, #(#params),*) -> #output {
                const __TAKES: #private::wire::schema::Schema = #takes;
                self.call(
                    &#private::Stub { schema: T::__SCHEMA, method: #number },
                    |this| <T as #interface>::#ident(this, #(#given),*),
                    |e| { #(#puts)* },
                    |given| #gives,
                    |given| #fails,
                )
            }
        }
    }
}

impl Arg {
    fn parse(arg: &FnArg) -> Result<Arg> {
        let FnArg::Typed(arg) = arg else {
            return Err(Error::new_spanned(arg, "`self` comes first"));
        };
        let Pat::Ident(pat) = &*arg.pat else {
            return Err(Error::new_spanned(&arg.pat, "an argument has a name: it stands in the layout"));
        };
        let kind = match &*arg.ty {
            Type::Reference(r) if is_str(&r.elem) && r.mutability.is_none() => ArgKind::Text,
            Type::Reference(r) if is_bytes(&r.elem) && r.mutability.is_none() => ArgKind::Bytes,
            Type::Reference(r) => {
                return Err(Error::new(
                    r.span(),
                    "an argument is `&str`, `&[u8]`, or a value of a type that a field can have",
                ));
            }
            _ => ArgKind::Value,
        };
        Ok(Arg { ident: pat.ident.clone(), ty: (*arg.ty).clone(), kind })
    }

    fn field_type(&self, private: &TokenStream) -> TokenStream {
        let ty = &self.ty;
        match self.kind {
            ArgKind::Text => quote!(#private::wire::schema::Type::Text),
            ArgKind::Bytes => quote!(#private::wire::schema::Type::Bytes),
            ArgKind::Value => quote!(<#ty as #private::Field>::FIELD_TYPE),
        }
    }
}

fn schema(method: &Ident, fields: TokenStream, private: &TokenStream) -> TokenStream {
    let name = method.unraw().to_string();
    quote!(#private::wire::schema::Schema { name: #name, fields: &[#fields] })
}

/// Whether a receiver is `&mut self` and not `&self`; none if it is neither.
fn is_mutable(arg: &FnArg) -> Option<bool> {
    match arg {
        FnArg::Receiver(Receiver { kind: ReceiverKind::Reference(_, _, mutable), .. }) => {
            Some(mutable.is_some())
        }
        _ => None,
    }
}

fn is_str(ty: &Type) -> bool {
    matches!(ty, Type::Path(p) if p.path.is_ident("str"))
}

fn is_bytes(ty: &Type) -> bool {
    matches!(ty, Type::Slice(s) if matches!(&*s.elem, Type::Path(p) if p.path.is_ident("u8")))
}

/// What a `Result` of two types gives and fails with.
fn result_of(ty: &Type) -> Option<(&Type, &Type)> {
    let Type::Path(path) = ty else { return None };
    let last = path.path.segments.last().filter(|s| s.ident == "Result")?;
    let PathArguments::AngleBracketed(args) = &last.arguments else { return None };
    match (args.args.first(), args.args.iter().nth(1), args.args.len()) {
        (Some(GenericArgument::Type(gives)), Some(GenericArgument::Type(fails)), 2) => Some((gives, fails)),
        _ => None,
    }
}
