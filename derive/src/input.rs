//! A struct as its author wrote it, read once into what the expansions need.
//!
//! This module refuses mistakes that the source shows, all of them at once, each error at the place that must change: forms
//! that are no record, unknown attributes, names that cannot be. The code of [`crate::schema`] checks properties that only
//! the types know: whether a type can be a field, and how large it is. After [`Input::parse`] every name fits a catalogue
//! and no two accessors share a name.

use proc_macro2::{Group, Ident, Span, TokenStream, TokenTree};
use quote::{ToTokens, quote};
use syn::ext::IdentExt;
use syn::spanned::Spanned;
use syn::{Attribute, Data, DeriveInput, Error, Fields, LitStr, Path, Result, Type, Visibility};

use crate::advise::advise;

/// Which derive is at work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A class, with accessors.
    Object,
    /// A small record inside an object, without.
    Record,
}

/// A struct that can become a class or a nested record.
pub struct Input {
    /// Its identifier.
    pub ident: Ident,
    /// Its visibility.
    pub vis: Visibility,
    /// The class's name.
    pub name: String,
    /// The path of the crate that offers `__private`.
    pub krate: Path,
    /// Its fields, at least one.
    pub members: Vec<Member>,
}

/// A field.
pub struct Member {
    /// Its identifier, raw if it must be.
    pub ident: Ident,
    /// The visibility of its accessors.
    pub vis: Visibility,
    /// Its type, which also holds outside of the struct.
    pub ty: TokenStream,
    /// Where the type begins. Locals of the expansion must not carry it: they would not be found if a macro made the struct.
    pub span: Span,
    /// Its own documentation.
    pub docs: Vec<Attribute>,
    /// Whether a setter converts what it is given.
    pub converts: bool,
}

impl Input {
    /// Reads a struct. The error holds everything that is wrong with it.
    pub fn parse(input: DeriveInput, kind: Kind) -> Result<Input> {
        let mut wrong = Wrong::default();
        let options = Options::parse(&input.attrs, kind, &mut wrong);
        if !input.generics.params.is_empty() || input.generics.where_clause.is_some() {
            let at = input.generics.params.to_token_stream();
            let at = if at.is_empty() { input.generics.where_clause.to_token_stream() } else { at };
            wrong.add(Error::new_spanned(
                at,
                format!("{} has no parameters: what is stored must have one layout", kind.article()),
            ));
        }
        let fields = match input.data {
            Data::Struct(s) => match s.fields {
                Fields::Named(fields) => fields.named,
                Fields::Unnamed(_) => {
                    return Err(wrong.with(not_a_record(&input.ident, kind, "a tuple struct")));
                }
                Fields::Unit => return Err(wrong.with(not_a_record(&input.ident, kind, "a unit struct"))),
            },
            Data::Enum(_) => return Err(wrong.with(not_a_record(&input.ident, kind, "an enum"))),
            Data::Union(_) => return Err(wrong.with(not_a_record(&input.ident, kind, "a union"))),
        };
        if fields.is_empty() {
            wrong.add(Error::new(input.ident.span(), format!("{} has at least one field", kind.article())));
        }
        if let Some(field) = fields.iter().nth(FIELDS_MAX) {
            wrong.add(Error::new_spanned(
                &field.ident,
                format!("{} has at most {FIELDS_MAX} fields: move some into a nested record", kind.article()),
            ));
        }
        let mut members = Vec::with_capacity(fields.len());
        for field in fields {
            if let Some(attr) = field.attrs.iter().find(|a| a.path().is_ident(ATTRIBUTE)) {
                wrong.add(Error::new_spanned(
                    attr,
                    "`object` belongs to the struct: a field takes no attribute",
                ));
            }
            advise(&field.ty, &mut |e| wrong.add(e));
            let Some(ident) = field.ident else { continue };
            members.push(Member {
                vis: wider(&input.vis, &field.vis),
                span: field.ty.span(),
                converts: converts(&field.ty),
                ty: without_self(field.ty.into_token_stream(), &input.ident),
                docs: field.attrs.into_iter().filter(|a| a.path().is_ident("doc")).collect(),
                ident,
            });
        }
        check_names(&members, kind, &mut wrong);
        wrong.end()?;
        Ok(Input {
            name: options.name.unwrap_or_else(|| input.ident.unraw().to_string()),
            krate: options.krate.unwrap_or_else(|| syn::parse_quote!(::tercel)),
            ident: input.ident,
            vis: input.vis,
            members,
        })
    }
}

impl Member {
    /// Its name in the catalogue.
    pub fn name(&self) -> String {
        self.ident.unraw().to_string()
    }
}

impl Kind {
    fn article(self) -> &'static str {
        match self {
            Kind::Object => "an object",
            Kind::Record => "a record",
        }
    }
}

/// What `#[object(...)]` says.
#[derive(Default)]
struct Options {
    name: Option<String>,
    krate: Option<Path>,
}

impl Options {
    fn parse(attrs: &[Attribute], kind: Kind, wrong: &mut Wrong) -> Options {
        let mut options = Options::default();
        for attr in attrs.iter().filter(|a| a.path().is_ident(ATTRIBUTE)) {
            let parsed = attr.parse_nested_meta(|meta| {
                if meta.path.is_ident("name") {
                    let name: LitStr = meta.value()?.parse()?;
                    if !is_name(&name.value()) {
                        return Err(Error::new(
                            name.span(),
                            format!("the name of a class has 1 to {NAME_BYTES_MAX} bytes and no control characters"),
                        ));
                    }
                    once(&mut options.name, name.value(), &meta)
                } else if meta.path.is_ident("crate") {
                    let path: LitStr = meta.value()?.parse()?;
                    once(&mut options.krate, path.parse()?, &meta)
                } else {
                    Err(meta.error(format!("unknown attribute: {} takes `name` and `crate`", kind.article())))
                }
            });
            if let Err(e) = parsed {
                wrong.add(e);
            }
        }
        options
    }
}

fn once<T>(slot: &mut Option<T>, value: T, meta: &syn::meta::ParseNestedMeta<'_>) -> Result<()> {
    match slot.replace(value) {
        None => Ok(()),
        Some(_) => Err(meta.error("given twice")),
    }
}

/// Errors so far.
#[derive(Default)]
struct Wrong(Option<Error>);

impl Wrong {
    fn add(&mut self, e: Error) {
        match &mut self.0 {
            None => self.0 = Some(e),
            Some(all) => all.combine(e),
        }
    }

    fn with(self, e: Error) -> Error {
        match self.0 {
            None => e,
            Some(mut all) => {
                all.combine(e);
                all
            }
        }
    }

    fn end(self) -> Result<()> {
        self.0.map_or(Ok(()), Err)
    }
}

fn not_a_record(ident: &Ident, kind: Kind, what: &str) -> Error {
    Error::new(ident.span(), format!("{} is a struct with named fields, and this is {what}", kind.article()))
}

fn check_names(members: &[Member], kind: Kind, wrong: &mut Wrong) {
    for member in members {
        let name = member.name();
        if !is_name(&name) {
            wrong.add(Error::new(
                member.span,
                format!("the name of a field has at most {NAME_BYTES_MAX} bytes"),
            ));
        }
        if kind == Kind::Record {
            continue;
        }
        if let Some((_, why)) = RESERVED.iter().find(|(reserved, _)| *reserved == name) {
            wrong.add(Error::new(
                member.ident.span(),
                format!("a field of an object cannot have the name `{name}`: {why}"),
            ));
        }
        let set = name.strip_prefix("set_");
        if let Some(other) = set.and_then(|set| members.iter().find(|m| m.name() == set)) {
            wrong.add(Error::new(
                member.ident.span(),
                format!("the accessor of this field would have the name of the setter of `{}`", other.name()),
            ));
        }
    }
}

fn is_name(name: &str) -> bool {
    (1..=NAME_BYTES_MAX).contains(&name.len()) && !name.chars().any(char::is_control)
}

/// An accessor can be called wherever the struct can be named, or the field.
fn wider(of_struct: &Visibility, of_field: &Visibility) -> Visibility {
    let reach = |vis: &Visibility| match vis {
        Visibility::Inherited => 0,
        Visibility::Restricted(r) if r.path.is_ident("self") => 0,
        Visibility::Restricted(r) if r.path.is_ident("crate") => 2,
        Visibility::Restricted(_) => 1,
        Visibility::Public(_) => 3,
    };
    if reach(of_field) > reach(of_struct) { of_field.clone() } else { of_struct.clone() }
}

/// Whether a setter takes `impl Into<..>`: for the types that stand for others, where a literal is what one has at hand.
/// Not for the rest: a number, `None` or a null reference would no longer find its type.
fn converts(ty: &Type) -> bool {
    match ty {
        Type::Path(path) => path.path.segments.last().is_some_and(|s| CONVERTED.iter().any(|c| s.ident == c)),
        Type::Group(group) => converts(&group.elem),
        Type::Paren(paren) => converts(&paren.elem),
        _ => false,
    }
}

/// The type as it is written elsewhere: `Self` would name the accessor there.
fn without_self(tokens: TokenStream, ident: &Ident) -> TokenStream {
    tokens
        .into_iter()
        .map(|token| match token {
            TokenTree::Ident(i) if i == "Self" => {
                let mut named = ident.clone();
                named.set_span(i.span());
                TokenTree::Ident(named)
            }
            TokenTree::Group(g) => {
                let mut inner = Group::new(g.delimiter(), without_self(g.stream(), ident));
                inner.set_span(g.span());
                TokenTree::Group(inner)
            }
            token => token,
        })
        .collect()
}

/// The documentation of an accessor: the field's own, or a line that names it.
pub fn docs(member: &Member) -> TokenStream {
    if member.docs.is_empty() {
        let line = format!("Field `{}`.", member.name());
        return quote!(#[doc = #line]);
    }
    let docs = &member.docs;
    quote!(#(#docs)*)
}

/// The helper attribute of both derives, so that a struct with both says its crate once.
const ATTRIBUTE: &str = "object";

/// As a catalogue allows.
const FIELDS_MAX: usize = 256;

/// As a catalogue allows.
const NAME_BYTES_MAX: usize = 128;

/// Types made from a literal or a collection of the standard library.
const CONVERTED: [&str; 3] = ["Text", "Bytes", "List"];

/// Names of methods that would be called in an accessor's stead. A name is easier given back than taken away.
const RESERVED: [(&str, &str); 8] = [
    ("reference", OWN),
    ("to_value", OWN),
    ("edit", OWN),
    ("clone", STD),
    ("deref", STD),
    ("into", STD),
    ("to_owned", STD),
    ("try_into", STD),
];
const OWN: &str = "every object has a method of this name";
const STD: &str = "a method of the standard library would be called instead of the accessor";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bounds_are_those_of_a_catalogue() {
        assert_eq!(
            (FIELDS_MAX, NAME_BYTES_MAX),
            (tercel_wire::layout::FIELDS_MAX, tercel_wire::layout::NAME_BYTES_MAX)
        );
    }

    #[test]
    fn an_accessor_reaches_as_far_as_the_struct_and_further_with_its_field() {
        let wider = |of_struct: &str, of_field: &str| {
            let [a, b] = [of_struct, of_field].map(|v| syn::parse_str::<Visibility>(v).unwrap());
            super::wider(&a, &b).to_token_stream().to_string()
        };
        assert_eq!(wider("pub", ""), "pub");
        assert_eq!(wider("", "pub(super)"), "pub (super)");
        assert_eq!(wider("pub(super)", "pub(self)"), "pub (super)");
        assert_eq!(wider("pub(in crate::a)", "pub(crate)"), "pub (crate)");
        assert_eq!(wider("pub(crate)", "pub(super)"), "pub (crate)");
    }

    #[test]
    fn self_in_a_type_becomes_the_struct() {
        let ty =
            without_self(quote!(Option<(Ref<Self>, [u8; Self::N])>), &Ident::new("Part", Span::call_site()));
        assert_eq!(ty.to_string(), quote!(Option<(Ref<Part>, [u8; Part::N])>).to_string());
    }

    #[test]
    fn everything_wrong_is_reported_at_once() {
        let input = syn::parse_quote! {
            #[object(colour = "red")]
            struct Part<T> { clone: T, x: u8, set_x: u8 }
        };
        let Err(e) = Input::parse(input, Kind::Object) else { panic!("it was accepted") };
        let said: Vec<String> = e.into_iter().map(|e| e.to_string()).collect();
        assert_eq!(said.len(), 4, "{said:?}");
    }

    #[test]
    fn a_class_has_at_most_256_fields() {
        let fields = |n: usize| {
            let names = (0..n).map(|i| quote::format_ident!("f{i}"));
            Input::parse(syn::parse_quote!(struct Wide { #(#names: u8),* }), Kind::Object)
        };
        assert!(fields(256).is_ok());
        assert!(fields(257).is_err_and(|e| e.to_string().contains("at most 256 fields")));
    }

    #[test]
    fn a_name_has_at_most_128_bytes() {
        let named = |n: usize| {
            let name = "x".repeat(n);
            Input::parse(
                syn::parse_quote!(
                    #[object(name = #name)]
                    struct Part {
                        a: u8,
                    }
                ),
                Kind::Object,
            )
        };
        assert!(named(128).is_ok());
        assert!(named(129).is_err() && named(0).is_err());
        let field = Ident::new(&"x".repeat(129), Span::call_site());
        assert!(Input::parse(syn::parse_quote!(struct Part { #field: u8 }), Kind::Record).is_err());
    }
}
