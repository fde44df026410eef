//! A struct or enum as its author wrote it, read once into what the expansions need.
//!
//! This module refuses mistakes that the source shows, all of them at once, each error at the place that must
//! change: forms that are no record, unknown attributes, names that cannot be. The code of [`crate::schema`]
//! checks properties that only the types know: whether a type can be a field, and how large it is. After
//! [`Input::parse`] every name fits a catalogue and no two accessors share a name.

use proc_macro2::{Group, Ident, Span, TokenStream, TokenTree};
use quote::{ToTokens, format_ident, quote};
use syn::ext::IdentExt;
use syn::spanned::Spanned;
use syn::{
    Attribute, Data, DataEnum, DeriveInput, Error, Fields, GenericArgument, LitStr, Path, PathArguments,
    Result, Type, Visibility,
};

use crate::advise::{FIELD, advise};

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
    /// The identifier of the type.
    pub ident: Ident,
    /// The visibility of the type.
    pub vis: Visibility,
    /// The class's name.
    pub name: String,
    /// The path of the crate that offers `__private`.
    pub krate: Path,
    /// Set if a record says that it is a class as well.
    pub is_class: bool,
    /// The fields of the type, at least one of a struct.
    pub members: Vec<Member>,
}

/// A field.
pub struct Member {
    /// The identifier of the field, raw if it must be.
    pub ident: Ident,
    /// The number of a variant's field that has no name.
    pub index: Option<usize>,
    /// The visibility of its accessors.
    pub vis: Visibility,
    /// The type of the field, which also holds outside of the struct.
    pub ty: TokenStream,
    /// Where the type begins. Locals of the expansion must not carry it: they would not be found if a macro
    /// made the struct.
    pub span: Span,
    /// The documentation of the field.
    pub docs: Vec<Attribute>,
    /// Set if a setter converts what it is given.
    pub converts: bool,
    /// The elements, if the type is a list.
    pub element: Option<Element>,
}

/// The elements of a list.
pub struct Element {
    /// The type, as [`Member::ty`].
    pub ty: TokenStream,
    /// Set if an element is made of what is pushed.
    pub converts: bool,
}

impl Input {
    /// Reads a struct. The error holds everything that is wrong with it.
    pub fn parse(input: DeriveInput, kind: Kind) -> Result<Input> {
        let mut wrong = Wrong::default();
        let mut head = Input::head(&input, kind, &mut wrong);
        let not_a_record = |what| not_a_record(&input.ident, kind, what);
        let fields = match input.data {
            Data::Struct(s) => match s.fields {
                Fields::Named(_) => s.fields,
                Fields::Unnamed(_) => return Err(wrong.with(not_a_record("a tuple struct"))),
                Fields::Unit => return Err(wrong.with(not_a_record("a unit struct"))),
            },
            Data::Enum(_) => return Err(wrong.with(not_a_record("an enum"))),
            Data::Union(_) => return Err(wrong.with(not_a_record("a union"))),
        };
        if fields.is_empty() {
            wrong.add(Error::new(input.ident.span(), format!("{} has at least one field", kind.article())));
        }
        head.members = members(fields, &head, kind, &mut wrong);
        wrong.end()?;
        Ok(head)
    }

    /// All but the fields.
    fn head(input: &DeriveInput, kind: Kind, wrong: &mut Wrong) -> Input {
        let options = Options::parse(&input.attrs, kind, wrong);
        if !input.generics.params.is_empty() || input.generics.where_clause.is_some() {
            let at = input.generics.params.to_token_stream();
            let at = if at.is_empty() { input.generics.where_clause.to_token_stream() } else { at };
            wrong.add(Error::new_spanned(
                at,
                format!("{} has no parameters: what is stored must have one layout", kind.article()),
            ));
        }
        Input {
            name: options.name.unwrap_or_else(|| input.ident.unraw().to_string()),
            krate: options.krate.unwrap_or_else(|| syn::parse_quote!(::tercel)),
            is_class: options.is_class,
            ident: input.ident.clone(),
            vis: input.vis.clone(),
            members: Vec::new(),
        }
    }
}

/// An enum that can become a nested record.
pub struct Enum {
    /// All of it but the variants; it has no members.
    pub whole: Input,
    /// Each variant as a struct of its fields, by its own identifier and name. At least one.
    pub variants: Vec<Input>,
}

impl Enum {
    /// Reads an enum. The error holds everything that is wrong with it.
    pub fn parse(input: &DeriveInput, data: &DataEnum) -> Result<Enum> {
        let mut wrong = Wrong::default();
        let whole = Input::head(input, Kind::Record, &mut wrong);
        if data.variants.is_empty() {
            wrong.add(Error::new(input.ident.span(), "an enum has at least one variant"));
        }
        if let Some(variant) = data.variants.iter().nth(VARIANTS_MAX) {
            let text = format!("an enum has at most {VARIANTS_MAX} variants");
            wrong.add(Error::new_spanned(&variant.ident, text));
        }
        let mut variants = Vec::with_capacity(data.variants.len());
        for variant in &data.variants {
            let name = variant.ident.unraw().to_string();
            if !is_name(&name) {
                let text = format!("the name of a variant has at most {NAME_BYTES_MAX} bytes");
                wrong.add(Error::new(variant.ident.span(), text));
            }
            refuse_attribute(
                &variant.attrs,
                "`object` belongs to the enum: a variant takes no attribute",
                &mut wrong,
            );
            variants.push(Input {
                members: members(variant.fields.clone(), &whole, Kind::Record, &mut wrong),
                ident: variant.ident.clone(),
                vis: whole.vis.clone(),
                krate: whole.krate.clone(),
                is_class: false,
                name,
            });
        }
        wrong.end()?;
        Ok(Enum { whole, variants })
    }
}

/// The fields of a struct or variant, checked.
fn members(fields: Fields, of: &Input, kind: Kind, wrong: &mut Wrong) -> Vec<Member> {
    if let Some(field) = fields.iter().nth(FIELDS_MAX) {
        let text =
            format!("{} has at most {FIELDS_MAX} fields: move some into a nested record", kind.article());
        match &field.ident {
            Some(ident) => wrong.add(Error::new_spanned(ident, text)),
            None => wrong.add(Error::new_spanned(&field.ty, text)),
        }
    }
    let mut members = Vec::with_capacity(fields.len());
    for (i, field) in fields.into_iter().enumerate() {
        refuse_attribute(&field.attrs, "`object` belongs to the struct: a field takes no attribute", wrong);
        advise(&field.ty, FIELD, &mut |e| wrong.add(e));
        members.push(Member {
            vis: wider(&of.vis, &field.vis),
            span: field.ty.span(),
            converts: converts(&field.ty),
            element: element(&field.ty, &of.ident),
            index: field.ident.is_none().then_some(i),
            ident: field.ident.unwrap_or_else(|| format_ident!("_{i}")),
            ty: without_self(field.ty.into_token_stream(), &of.ident),
            docs: field.attrs.into_iter().filter(|a| a.path().is_ident("doc")).collect(),
        });
    }
    check_names(&members, kind, wrong);
    members
}

fn refuse_attribute(attrs: &[Attribute], text: &str, wrong: &mut Wrong) {
    if let Some(attr) = attrs.iter().find(|a| a.path().is_ident(ATTRIBUTE)) {
        wrong.add(Error::new_spanned(attr, text));
    }
}

impl Member {
    /// The name in the catalogue: of a field without one its number.
    pub fn name(&self) -> String {
        self.index.map_or_else(|| self.ident.unraw().to_string(), |i| i.to_string())
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

/// The options in `#[object(...)]`.
#[derive(Default)]
struct Options {
    name: Option<String>,
    krate: Option<Path>,
    is_class: bool,
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
                } else if meta.path.is_ident("class") {
                    options.is_class = true;
                    Ok(())
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

/// The path of the crate that the code of a struct which is only a key refers to.
pub fn crate_of(attrs: &[Attribute]) -> Result<Path> {
    let mut wrong = Wrong::default();
    let options = Options::parse(attrs, Kind::Record, &mut wrong);
    wrong.end()?;
    Ok(options.krate.unwrap_or_else(|| syn::parse_quote!(::tercel)))
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
    let mut text = format!("{} is a struct with named fields, and this is {what}", kind.article());
    if what == "an enum" {
        text += ": derive `Record` instead, and make it a field of an object";
    }
    Error::new(ident.span(), text)
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
        for (prefix, what) in [("set_", "setter"), ("push_", "push method")] {
            let of = name.strip_prefix(prefix);
            let has =
                |m: &&Member| Some(m.name().as_str()) == of && (prefix == "set_" || m.element.is_some());
            if let Some(other) = members.iter().find(has) {
                wrong.add(Error::new(
                    member.ident.span(),
                    format!(
                        "the accessor of this field would have the name of the {what} of `{}`",
                        other.name()
                    ),
                ));
            }
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

/// Says whether a setter takes `impl Into<..>`: so for types that stand for others, where callers have a
/// literal at hand. Not for the rest: a number, `None` or a null reference would no longer find its type.
fn converts(ty: &Type) -> bool {
    match ty {
        Type::Path(path) => path.path.segments.last().is_some_and(|s| CONVERTED.iter().any(|c| s.ident == c)),
        Type::Group(group) => converts(&group.elem),
        Type::Paren(paren) => converts(&paren.elem),
        _ => false,
    }
}

/// The elements of a list, if the type is written as one.
fn element(ty: &Type, ident: &Ident) -> Option<Element> {
    match ty {
        Type::Path(path) => {
            let list = path.path.segments.last().filter(|s| s.ident == "List")?;
            let PathArguments::AngleBracketed(args) = &list.arguments else { return None };
            let Some(GenericArgument::Type(ty)) = args.args.first() else { return None };
            Some(Element { ty: without_self(ty.to_token_stream(), ident), converts: converts(ty) })
        }
        Type::Group(group) => element(&group.elem, ident),
        Type::Paren(paren) => element(&paren.elem, ident),
        _ => None,
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

/// The number of fields that a catalogue allows.
const FIELDS_MAX: usize = 256;

/// The number of variants that a catalogue allows: the number of a variant is a field, too.
const VARIANTS_MAX: usize = FIELDS_MAX - 1;

/// The bytes of a name that a catalogue allows.
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
