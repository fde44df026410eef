//! The streams of a procedure: arguments that its implementation writes to, reads from or asks through, and
//! that callers have another way.

use proc_macro2::TokenStream;
use syn::{Error, FnArg, GenericArgument, Ident, Pat, PathArguments, Result, Type};

use crate::quote;

/// A stream, or both as a callback.
pub struct Stream {
    pub ident: Ident,
    /// The place of the stream among all arguments.
    pub at: usize,
    ty: Type,
    kind: Kind,
}

/// The types of a stream.
enum Kind {
    Output(Type),
    Input(Type),
    Callback(Type, Box<Type>),
}

impl Stream {
    /// The stream that an argument is; none if it is another.
    ///
    /// # Errors
    /// If it is none that a procedure can have.
    pub fn parse(at: usize, arg: &FnArg) -> Result<Option<Stream>> {
        let FnArg::Typed(arg) = arg else { return Ok(None) };
        let (Pat::Ident(pat), (ty, is_shared)) = (&*arg.pat, referred(&arg.ty)) else { return Ok(None) };
        let Some(kind) = Kind::of(ty) else { return Ok(None) };
        if !is_shared {
            return Err(Error::new_spanned(
                &arg.ty,
                "a stream is lent to its procedure: write `&Output<..>`, `&Input<..>` or `&Callback<.., ..>`",
            ));
        }
        Ok(Some(Stream { ident: pat.ident.clone(), at, ty: (*arg.ty).clone(), kind }))
    }

    /// The types of its items.
    pub fn items(&self) -> Vec<&Type> {
        match &self.kind {
            Kind::Output(item) | Kind::Input(item) => vec![item],
            Kind::Callback(question, answer) => vec![question, answer],
        }
    }

    /// The argument as an implementation takes it.
    pub fn param(&self) -> TokenStream {
        let (ident, ty) = (&self.ident, &self.ty);
        quote!(#ident: #ty)
    }

    /// Makes it of the call's context.
    pub fn made(&self, private: &TokenStream) -> TokenStream {
        match &self.kind {
            Kind::Output(item) => quote!(&#private::Output::<#item>::new(cx)?),
            Kind::Input(item) => quote!(&#private::Input::<#item>::new(cx)?),
            Kind::Callback(question, answer) => quote!(&#private::Callback::<#question, #answer>::new(cx)?),
        }
    }
}

/// All streams of a procedure.
#[derive(Default)]
pub struct Streams(pub Vec<Stream>);

impl Streams {
    /// Those of some arguments.
    ///
    /// # Errors
    /// If there are more than one each way.
    pub fn new(streams: Vec<Stream>) -> Result<Streams> {
        let count = |is: fn(&Kind) -> bool| streams.iter().filter(|s| is(&s.kind)).count();
        let inputs = count(|kind| !matches!(kind, Kind::Output(_)));
        let outputs = count(|kind| !matches!(kind, Kind::Input(_)));
        match streams.last().filter(|_| inputs > 1 || outputs > 1) {
            Some(last) => Err(Error::new_spanned(
                &last.ty,
                "a procedure has one stream each way at most, and a callback takes both",
            )),
            None => Ok(Streams(streams)),
        }
    }

    /// The callback with which the caller answers questions: its name, the type of questions and the type of
    /// answers.
    pub fn callback(&self) -> Option<(&Ident, &Type, &Type)> {
        self.0.iter().find_map(|s| match &s.kind {
            Kind::Callback(question, answer) => Some((&s.ident, question, &**answer)),
            _ => None,
        })
    }

    /// The types of what a caller sends and reads.
    pub fn items(&self) -> (TokenStream, TokenStream) {
        let never = quote!(::core::convert::Infallible);
        let (mut sent, mut read) = (never.clone(), never);
        for stream in &self.0 {
            match &stream.kind {
                Kind::Output(item) => read = quote!(#item),
                Kind::Input(item) => sent = quote!(#item),
                Kind::Callback(question, answer) => (sent, read) = (quote!(#answer), quote!(#question)),
            }
        }
        (sent, read)
    }

    /// The schemas of the items of its input and its output.
    pub fn schemas(&self, private: &TokenStream) -> (TokenStream, TokenStream) {
        let none = quote!(#private::wire::interface::NO_ITEMS);
        let (mut input, mut output) = (none.clone(), none);
        for stream in &self.0 {
            match &stream.kind {
                Kind::Output(item) => output = quote!(#private::Plain::<#item>::SCHEMA),
                Kind::Input(item) => input = quote!(#private::Plain::<#item>::SCHEMA),
                Kind::Callback(question, answer) => {
                    output = quote!(#private::Numbered::<#question>::SCHEMA);
                    input = quote!(#private::Numbered::<#answer>::SCHEMA);
                }
            }
        }
        (input, output)
    }
}

/// The type that a type refers to, and whether it only reads that.
fn referred(ty: &Type) -> (&Type, bool) {
    match ty {
        Type::Reference(r) => (&r.elem, r.mutability.is_none()),
        other => (other, false),
    }
}

impl Kind {
    fn of(ty: &Type) -> Option<Kind> {
        let Type::Path(path) = ty else { return None };
        let last = path.path.segments.last()?;
        let PathArguments::AngleBracketed(args) = &last.arguments else { return None };
        let types: Vec<&Type> = args
            .args
            .iter()
            .filter_map(|arg| match arg {
                GenericArgument::Type(ty) => Some(ty),
                _ => None,
            })
            .collect();
        Some(match (last.ident.to_string().as_str(), &types[..]) {
            ("Output", [item]) => Kind::Output((*item).clone()),
            ("Input", [item]) => Kind::Input((*item).clone()),
            ("Callback", [question, answer]) => {
                Kind::Callback((*question).clone(), Box::new((*answer).clone()))
            }
            _ => return None,
        })
    }
}
