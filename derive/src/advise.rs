//! The types to write instead of types of the standard library that a user is likely to try first.
//!
//! The compiler refuses every type that is not a field; this module only says it earlier, once, and with the
//! remedy. It goes by the name alone, so it knows only names that a nested record would hardly have.

use syn::{Error, GenericArgument, PathArguments, Type};

/// An error for every part of the type that has a better known by name, and stands for `of`.
pub fn advise(ty: &Type, of: &str, found: &mut impl FnMut(Error)) {
    let mut refuse = |what: &str, remedy: &str| {
        found(Error::new_spanned(ty, format!("{what} cannot be {of}: {remedy}\n{ALLOWED}")));
    };
    match ty {
        Type::Group(group) => advise(&group.elem, of, found),
        Type::Paren(paren) => advise(&paren.elem, of, found),
        Type::Reference(_) => refuse("a borrow", "use `Text`, `Bytes` or `Ref<T>`"),
        Type::Tuple(_) => refuse("a tuple", "use a struct with `#[derive(Record)]`"),
        Type::Path(path) => {
            let Some(last) = path.path.segments.last() else { return };
            let name = last.ident.to_string();
            match &last.arguments {
                PathArguments::AngleBracketed(args) => match named(&GENERIC, &name) {
                    Some(remedy) => refuse(&format!("`{name}`"), remedy),
                    // Keys are encoded, and may be what fields are not.
                    None => args.args.iter().skip(usize::from(KEYED.contains(&&*name))).for_each(|arg| {
                        if let GenericArgument::Type(inner) = arg {
                            advise(inner, of, found);
                        }
                    }),
                },
                _ => {
                    if let Some(remedy) = named(&PLAIN, &name) {
                        refuse(&format!("`{name}`"), remedy);
                    }
                }
            }
        }
        _ => {}
    }
}

/// Collections whose first argument is the type of their keys.
const KEYED: [&str; 2] = ["Map", "Set"];

/// The place of a type in a class.
pub const FIELD: &str = "a field of an object";

/// The place of a type in an interface or a service.
pub const PART: &str = "an argument or a result";

fn named(table: &[(&str, &'static str)], name: &str) -> Option<&'static str> {
    table.iter().find(|(n, _)| *n == name).map(|(_, remedy)| *remedy)
}

/// The compiler's list, whose other copy is the note of the trait that all fields have.
const ALLOWED: &str = "fields are: u8 to u64, i8 to i64, f32, f64, bool, arrays of them, Text, Bytes, Ref<T>, Far<T>, List<T>, Option<T> and types with #[derive(Record)]";

const PLAIN: [(&str, &str); 6] = [
    ("String", "use `Text`"),
    ("char", "use `u32` or `Text`"),
    ("usize", "its size differs between machines, use `u32` or `u64`"),
    ("isize", "its size differs between machines, use `i32` or `i64`"),
    ("u128", "use `[u64; 2]`"),
    ("i128", "use `[u64; 2]`"),
];

const GENERIC: [(&str, &str); 9] = [
    ("Vec", "use `List<T>`, or `Bytes` for bytes"),
    ("VecDeque", "use `List<T>`"),
    ("Box", "use `Ref<T>` for another object"),
    ("Rc", "use `Ref<T>` for another object"),
    ("Arc", "use `Ref<T>` for another object"),
    ("HashMap", "use a collection"),
    ("BTreeMap", "use a collection"),
    ("HashSet", "use a collection"),
    ("BTreeSet", "use a collection"),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn said(ty: Type) -> Vec<String> {
        let mut said = vec![];
        advise(&ty, FIELD, &mut |e| said.push(e.to_string()));
        said
    }

    #[test]
    fn what_can_be_a_field_is_left_alone() {
        assert!(said(syn::parse_quote!(Option<List<Ref<wire::Part>>>)).is_empty());
        assert!(said(syn::parse_quote!([u8; 4])).is_empty());
        assert!(said(syn::parse_quote!(Box)).is_empty(), "it may be a user's record");
    }

    #[test]
    fn the_standard_library_is_found_wherever_it_stands() {
        let text = said(syn::parse_quote!(Option<std::string::String>));
        assert!(
            text[0].starts_with("`String` cannot be a field of an object: use `Text`\nfields are: "),
            "{text:?}"
        );
        assert_eq!(said(syn::parse_quote!(List<Vec<String>>)).len(), 1);
        assert_eq!(said(syn::parse_quote!((u8, u8))).len(), 1);
        assert_eq!(said(syn::parse_quote!(&'static str)).len(), 1);
    }
}
