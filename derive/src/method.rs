//! The methods of an interface, and the procedures of a service: what both are as their author wrote them,
//! and as code.

use proc_macro2::{Literal, TokenStream};
use syn::ext::IdentExt;
use syn::parse::{Parse, ParseStream};
use syn::spanned::Spanned;
use syn::{
    Attribute, Error, FnArg, GenericArgument, Ident, ItemTrait, LitInt, LitStr, Pat, Path, PathArguments,
    Receiver, ReceiverKind, Result, ReturnType, Safety, Signature, Token, TraitItem, TraitItemFn, Type,
    Visibility,
};

use crate::advise::{PART, advise};
use crate::quote;
use crate::stream::{Stream, Streams};

/// The options in the parentheses of the attribute.
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
                    return Err(Error::new(value.span(), "its name has 1 to 128 bytes"));
                }
                "crate" => options.krate = Some(value.parse()?),
                _ => {
                    return Err(Error::new(key.span(), "unknown attribute: it takes `name` and `crate`"));
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

/// The kind of item that a trait becomes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Of {
    /// The interface of objects.
    Objects,
    /// A service.
    Service,
}

impl Of {
    fn says(self, of_objects: &'static str, of_service: &'static str) -> &'static str {
        match self {
            Of::Objects => of_objects,
            Of::Service => of_service,
        }
    }

    fn attributes(self) -> &'static [&'static str] {
        match self {
            Of::Objects => &["doc", "cfg", "read", "internal"],
            Of::Service => &["doc", "cfg", "read", "slow", "one_way", "once"],
        }
    }
}

/// A trait as its author wrote it.
pub struct Trait {
    pub ident: Ident,
    pub vis: Visibility,
    pub docs: Vec<Attribute>,
    pub name: String,
    pub krate: Path,
    /// The methods that callers have.
    pub methods: Vec<Method>,
    /// The methods that other methods alone call, where all of them run.
    pub internal: Vec<Method>,
}

/// A method of an interface, or a procedure of a service.
pub struct Method {
    pub ident: Ident,
    pub docs: Vec<Attribute>,
    /// The conditions under which it is there.
    pub cfg: Vec<Attribute>,
    /// Its place among the methods that are there, a constant expression.
    pub number: TokenStream,
    is_internal: bool,
    reads: bool,
    is_slow: bool,
    pub is_one_way: bool,
    /// Called with a key, under which it has one effect.
    is_once: bool,
    pub args: Vec<Arg>,
    pub streams: Streams,
    /// The type of its result; none for `()`.
    gives: Option<Type>,
    /// The type of its error.
    fails: Option<Type>,
}

/// An argument.
pub struct Arg {
    pub ident: Ident,
    ty: Type,
    pub kind: ArgKind,
}

/// The way in which an argument is handed over.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum ArgKind {
    /// `&str`, in place.
    Text,
    /// `&[u8]`, in place.
    Bytes,
    /// `LentBytes`, in place even if that is memory which its sender may write.
    Lent,
    /// A value.
    Value,
}

impl Trait {
    /// Reads a trait.
    ///
    /// # Errors
    /// Everything that is wrong with it, each where it must change.
    pub fn parse(options: Options, item: ItemTrait, of: Of) -> Result<Trait> {
        let mut wrong: Option<Error> = None;
        let mut add = |e: Error| match &mut wrong {
            None => wrong = Some(e),
            Some(all) => all.combine(e),
        };
        if !item.generics.params.is_empty() || item.generics.where_clause.is_some() {
            add(Error::new_spanned(
                &item.generics,
                of.says(
                    "an interface has no parameters: both ends must know it by its name",
                    "a service has no parameters: both ends must know it by its name",
                ),
            ));
        }
        if !item.supertraits.is_empty() {
            add(Error::new_spanned(
                &item.supertraits,
                of.says(
                    "an interface stands alone: every class of objects can have it",
                    "a service stands alone: it is known by its name",
                ),
            ));
        }
        let mut methods = Vec::new();
        for item in &item.items {
            match item {
                TraitItem::Fn(f) => match Method::parse(f, of) {
                    Ok(method) => methods.push(method),
                    Err(e) => add(e),
                },
                other => add(Error::new_spanned(
                    other,
                    of.says("an interface has methods alone", "a service has procedures alone"),
                )),
            }
        }
        let (internal, mut methods): (Vec<Method>, Vec<Method>) =
            methods.into_iter().partition(|m| m.is_internal);
        number(&mut methods);
        if !internal.is_empty() && internal.len() == item.items.len() {
            add(Error::new(item.ident.span(), "an interface has a method that is not `#[internal]`"));
        }
        if item.items.is_empty() || item.items.len() > METHODS_MAX {
            let (start, noun) = match of {
                Of::Objects => ("an interface", "methods"),
                Of::Service => ("a service", "procedures"),
            };
            add(Error::new(item.ident.span(), format!("{start} has 1 to {METHODS_MAX} {noun}")));
        }
        if let Some(wrong) = wrong {
            return Err(wrong);
        }
        Ok(Trait {
            name: options.name.unwrap_or_else(|| item.ident.unraw().to_string()),
            krate: options.krate.unwrap_or_else(|| syn::parse_quote!(::tercel)),
            docs: item.attrs.into_iter().filter(|a| a.path().is_ident("doc")).collect(),
            ident: item.ident,
            vis: item.vis,
            methods,
            internal,
        })
    }
}

impl Method {
    pub fn parse(f: &TraitItemFn, of: Of) -> Result<Method> {
        let sig = &f.sig;
        if let Some(body) = &f.default {
            return Err(Error::new_spanned(
                body,
                of.says(
                    "a method of an interface has no body: a class implements it",
                    "a procedure of a service has no body: a server implements it",
                ),
            ));
        }
        if !sig.generics.params.is_empty()
            || sig.asyncness.is_some()
            || !matches!(sig.safety, Safety::Default)
        {
            return Err(Error::new_spanned(
                sig,
                of.says(
                    "a method of an interface has no parameters, and is not `async` or `unsafe`",
                    "a procedure of a service has no parameters, and is not `async` or `unsafe`",
                ),
            ));
        }
        let has = |name| f.attrs.iter().any(|a| a.path().is_ident(name));
        let (reads, is_internal) = (has("read"), has("internal"));
        let is_once = has("once");
        let (is_slow, is_one_way) = (has("slow") || is_once, has("one_way"));
        let known = of.attributes();
        let other = f.attrs.iter().find(|a| !known.iter().any(|name| a.path().is_ident(name)));
        if let Some(other) = other {
            return Err(Error::new_spanned(
                other,
                of.says(
                    "unknown attribute: a method takes `#[read]`, `#[internal]` and `#[cfg(..)]`",
                    "unknown attribute: a procedure takes `#[read]`, `#[slow]`, `#[one_way]`, `#[once]` and `#[cfg(..)]`",
                ),
            ));
        }
        let mut inputs = sig.inputs.iter();
        let receiver = inputs.next();
        match of {
            Of::Objects => check_method(reads, receiver, sig)?,
            Of::Service => check_procedure(receiver, sig)?,
        }
        let (mut args, mut streams) = (Vec::new(), Vec::new());
        for (at, input) in inputs.enumerate() {
            match Stream::parse(at, input)?.filter(|_| of == Of::Service) {
                Some(stream) => streams.push(stream),
                None => args.push(Arg::parse(input)?),
            }
        }
        if of == Of::Objects
            && let Some(lent) = args.iter().find(|a| a.kind == ArgKind::Lent)
        {
            return Err(Error::new_spanned(
                &lent.ty,
                "only a procedure of a service is lent bytes: a method takes `&[u8]`",
            ));
        }
        let streams = Streams::new(streams)?;
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
        if is_one_way && (gives.is_some() || fails.is_some()) {
            return Err(Error::new_spanned(
                &sig.output,
                "what is `#[one_way]` gives nothing: its caller does not wait for it",
            ));
        }
        if is_once && (reads || is_one_way) {
            return Err(Error::new_spanned(
                &sig.ident,
                "what is `#[once]` writes, and is answered: it is neither `#[read]` nor `#[one_way]`",
            ));
        }
        if let Some(first) = streams.0.first() {
            let says = match () {
                () if is_once => "a procedure with streams is sent once: it is not `#[once]`",
                () if !is_slow => "a procedure with streams waits for its caller: declare it `#[slow]`",
                () if is_one_way => "a procedure with streams is answered: it is not `#[one_way]`",
                () if reads => "a procedure with streams is executed at most once: it is not `#[read]`",
                () => "",
            };
            if !says.is_empty() {
                return Err(Error::new_spanned(first.param(), says));
            }
        }
        let values = args.iter().filter(|a| a.kind == ArgKind::Value).map(|a| &a.ty);
        let items = streams.0.iter().flat_map(Stream::items);
        let mut wrong: Option<Error> = None;
        for ty in values.chain(items).chain(&gives).chain(&fails) {
            advise(ty, PART, &mut |e| match &mut wrong {
                None => wrong = Some(e),
                Some(all) => all.combine(e),
            });
        }
        if let Some(wrong) = wrong {
            return Err(wrong);
        }
        let all = |name| f.attrs.iter().filter(|a| a.path().is_ident(name)).cloned().collect::<Vec<_>>();
        let (docs, cfg, number) = (all("doc"), all("cfg"), TokenStream::new());
        if let Some(wrong) = cfg.iter().find_map(|a| a.meta.require_list().err()) {
            return Err(wrong);
        }
        let ident = sig.ident.clone();
        Ok(Method {
            ident,
            docs,
            cfg,
            number,
            is_internal,
            reads,
            is_slow,
            is_one_way,
            is_once,
            args,
            streams,
            gives,
            fails,
        })
    }

    /// The pattern and the condition of its number.
    pub fn when(&self) -> TokenStream {
        let number = &self.number;
        match syn::parse2::<LitInt>(number.clone()) {
            Ok(literal) => quote!(#literal),
            Err(_) => quote!(__number if __number == #number),
        }
    }

    /// The type of a call's result.
    pub fn output(&self, private: &TokenStream) -> TokenStream {
        let gives = self.gives.as_ref().map_or(quote!(()), |ty| quote!(#ty));
        match &self.fails {
            Some(fails) => quote!(#private::Called<#gives, #fails>),
            None => quote!(#private::Called<#gives>),
        }
    }

    /// The arguments as an implementation takes them, without streams.
    pub fn params(&self) -> impl Iterator<Item = TokenStream> + '_ {
        self.args.iter().map(|Arg { ident, ty, .. }| quote!(#ident: #ty))
    }

    /// The arguments as callers give them.
    pub fn params_here(&self, private: &TokenStream) -> impl Iterator<Item = TokenStream> + '_ {
        let lending = quote!(impl ::core::convert::Into<#private::Lending<'lent>>);
        self.args.iter().map(move |Arg { ident, ty, kind }| match kind {
            ArgKind::Lent => quote!(#ident: #lending),
            _ => quote!(#ident: #ty),
        })
    }

    /// The lifetime of what callers lend, if they do.
    pub fn lifetimes_here(&self) -> TokenStream {
        if self.is_lent() { quote!(<'lent>) } else { quote!() }
    }

    /// The values that callers lend, before they are put.
    pub fn lendings(&self, private: &TokenStream) -> Vec<TokenStream> {
        let lent = self.args.iter().filter(|a| a.kind == ArgKind::Lent);
        lent.map(|Arg { ident, .. }| quote!(let #ident: #private::Lending<'_> = #ident.into();)).collect()
    }

    /// Says whether it is lent an argument.
    pub fn is_lent(&self) -> bool {
        self.args.iter().any(|a| a.kind == ArgKind::Lent)
    }

    /// Says whether its callers have a value for its streams.
    pub fn gives_streaming(&self) -> bool {
        !self.streams.0.is_empty() && self.streams.callback().is_none()
    }

    /// All of its arguments as an implementation takes them, streams included.
    pub fn params_there(&self) -> Vec<TokenStream> {
        let mut params: Vec<TokenStream> = self.params().collect();
        self.streams.0.iter().for_each(|s| params.insert(s.at, s.param()));
        params
    }

    /// The types of its result and its error.
    pub fn ends(&self) -> (TokenStream, TokenStream) {
        let gives = self.gives.as_ref().map_or(quote!(()), |ty| quote!(#ty));
        let fails = self.fails.as_ref().map_or(quote!(::core::convert::Infallible), |ty| quote!(#ty));
        (gives, fails)
    }

    /// The line of the method in the trait for callers.
    pub fn declared(&self, private: &TokenStream) -> TokenStream {
        let Method { ident, docs, cfg, .. } = self;
        let (output, params) = (self.output(private), self.params());
        quote! {
            #(#cfg)* #(#docs)*
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

    /// The constant that says what it is.
    pub fn schema(&self, private: &TokenStream) -> TokenStream {
        let (name, reads, takes) = (self.ident.unraw().to_string(), self.reads, self.takes(private));
        let cfg = &self.cfg;
        let gives = self.one("result", self.gives.as_ref(), private);
        let fails = self.one("error", self.fails.as_ref(), private);
        let mode = match (self.is_one_way, self.is_slow) {
            _ if self.is_once => quote!(Once),
            (false, false) => quote!(Plain),
            (false, true) => quote!(Slow),
            (true, false) => quote!(OneWay),
            (true, true) => quote!(SlowOneWay),
        };
        let (input, output) = self.streams.schemas(private);
        let payload = quote!(#private::wire::payload::PayloadSchema::of);
        quote! {
            #(#cfg)* #private::wire::interface::MethodSchema {
                name: #name, reads: #reads, mode: #private::wire::interface::Mode::#mode,
                takes: #payload(#takes), gives: #payload(#gives), fails: #payload(#fails),
                input: #input, output: #output,
            }
        }
    }

    /// Reads its arguments where they arrived, which are of the record `takes`.
    pub fn read_args(&self, takes: &TokenStream) -> Vec<TokenStream> {
        let read = |(i, a): (usize, &Arg)| {
            let ty = &a.ty;
            let at = quote!(const { #takes.offset(#i) });
            match a.kind {
                ArgKind::Text => quote!(given.text(#at)?),
                ArgKind::Bytes => quote!(given.bytes(#at)?),
                ArgKind::Lent => quote!(given.lent(#at)?),
                ArgKind::Value => quote!(given.value::<#ty>(#at)?),
            }
        };
        self.args.iter().enumerate().map(read).collect()
    }

    /// The same with its streams among them, made of the call's context.
    pub fn read_args_there(&self, takes: &TokenStream, private: &TokenStream) -> Vec<TokenStream> {
        let mut args = self.read_args(takes);
        self.streams.0.iter().for_each(|s| args.insert(s.at, s.made(private)));
        args
    }

    /// Writes its arguments as the record `takes`.
    pub fn put_args(&self, takes: &TokenStream, private: &TokenStream) -> Vec<TokenStream> {
        let put = |(i, a): (usize, &Arg)| {
            let (ident, ty) = (&a.ident, &a.ty);
            let at = quote!(const { #takes.offset(#i) });
            match a.kind {
                ArgKind::Value => quote!(<#ty as #private::Field>::put_field(&#ident, e, #at);),
                ArgKind::Text | ArgKind::Bytes => quote!(#private::put_bytes(#ident, e, #at);),
                ArgKind::Lent => quote!(#private::put_lending(#ident, e, #at);),
            }
        };
        self.args.iter().enumerate().map(put).collect()
    }

    /// Writes what it came to: what it gives, and what it fails with.
    pub fn put_ends(&self, private: &TokenStream) -> (TokenStream, TokenStream) {
        let gives = self.gives.as_ref().map(|ty| quote!(<#ty as #private::Field>::put_field(gives, e, 0);));
        let fails = match &self.fails {
            Some(ty) => quote!(<#ty as #private::Field>::put_field(fails, e, 0)),
            None => quote!(match *fails {}),
        };
        (quote!(#gives), fails)
    }

    /// Reads what it came to.
    pub fn read_ends(&self, private: &TokenStream) -> (TokenStream, TokenStream) {
        let gives = self
            .gives
            .as_ref()
            .map_or(quote!(::core::result::Result::Ok(())), |ty| quote!(given.value::<#ty>(0)));
        let fails =
            self.fails.as_ref().map_or(quote!(#private::never(given)), |ty| quote!(given.value::<#ty>(0)));
        (gives, fails)
    }
}

/// Gives each method its number: its place among those whose conditions hold where they are compiled.
fn number(methods: &mut [Method]) {
    let (mut sure, mut doubtful) = (0, Vec::new());
    for m in methods {
        let always = Literal::usize_unsuffixed(sure);
        m.number = match doubtful.is_empty() {
            true => quote!(#always),
            false => quote!((#always #(+ ::core::cfg!(#doubtful) as ::core::primitive::usize)*)),
        };
        let conditions = m.cfg.iter().filter_map(|a| a.meta.require_list().ok()).map(|list| &list.tokens);
        match m.cfg.is_empty() {
            true => sure += 1,
            false => doubtful.push(quote!(all(#(#conditions),*))),
        }
    }
}

/// Checks that a method of objects has the receiver that it needs.
fn check_method(reads: bool, receiver: Option<&FnArg>, sig: &Signature) -> Result<()> {
    match (reads, receiver.and_then(is_mutable)) {
        (true, Some(false)) | (false, Some(true)) => Ok(()),
        (true, Some(true)) => Err(Error::new_spanned(receiver, "a method that only reads takes `&self`")),
        (false, Some(false)) => Err(Error::new_spanned(
            receiver,
            "a method that writes takes `&mut self`; one that only reads is declared `#[read]`",
        )),
        (_, None) => Err(Error::new(
            sig.ident.span(),
            "a method of an interface begins with `&self`, and `#[read]` before it, or with `&mut self`",
        )),
    }
}

/// Checks that a procedure of a service has the receiver that it needs.
fn check_procedure(receiver: Option<&FnArg>, sig: &Signature) -> Result<()> {
    if sig.ident == SERVE {
        return Err(Error::new(
            sig.ident.span(),
            "a service has no procedure `serve`: that makes it of what implements it",
        ));
    }
    match receiver.and_then(is_mutable) {
        Some(false) => Ok(()),
        Some(true) => Err(Error::new_spanned(
            receiver,
            "a procedure of a service takes `&self`: it may be called by several threads at once",
        )),
        None => Err(Error::new(sig.ident.span(), "a procedure of a service begins with `&self`")),
    }
}

/// The type of bytes that a procedure is lent.
const LENT: &str = "LentBytes";

/// The name of the trait's function that makes the value a server is given.
const SERVE: &str = "serve";

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
            Type::Path(p) if p.path.segments.last().is_some_and(|s| s.ident == LENT) => ArgKind::Lent,
            _ => ArgKind::Value,
        };
        Ok(Arg { ident: pat.ident.clone(), ty: (*arg.ty).clone(), kind })
    }

    fn field_type(&self, private: &TokenStream) -> TokenStream {
        let ty = &self.ty;
        match self.kind {
            ArgKind::Text => quote!(#private::wire::schema::Type::Text),
            ArgKind::Bytes | ArgKind::Lent => quote!(#private::wire::schema::Type::Bytes),
            ArgKind::Value => quote!(<#ty as #private::Field>::FIELD_TYPE),
        }
    }
}

fn schema(method: &Ident, fields: TokenStream, private: &TokenStream) -> TokenStream {
    let name = method.unraw().to_string();
    quote!(#private::wire::schema::Schema { name: #name, fields: &[#fields] })
}

/// Says whether a receiver is `&mut self` and not `&self`; none if it is neither.
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

/// The two types of a `Result`: success and failure.
fn result_of(ty: &Type) -> Option<(&Type, &Type)> {
    let Type::Path(path) = ty else { return None };
    let last = path.path.segments.last().filter(|s| s.ident == "Result")?;
    let PathArguments::AngleBracketed(args) = &last.arguments else { return None };
    match (args.args.first(), args.args.iter().nth(1), args.args.len()) {
        (Some(GenericArgument::Type(gives)), Some(GenericArgument::Type(fails)), 2) => Some((gives, fails)),
        _ => None,
    }
}
