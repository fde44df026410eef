//! `#[table(...)]`: the key and the indexes of rows, and the editor that keeps indexes in line.
//!
//! The fields of the key have no setter at all, those of indexes one of the table's editor alone. So a row
//! cannot change without its entries.

use proc_macro2::{Ident, TokenStream};
use quote::format_ident;
use syn::ext::IdentExt;
use syn::meta::ParseNestedMeta;
use syn::{Attribute, Error, Result, Token, parenthesized, token};

use crate::input::{Input, Member};
use crate::quote;
use crate::schema::{asked, offset, taken};

/// The declaration of a class of rows.
pub struct Table {
    /// The fields of the key.
    key: Fields,
    indexes: Vec<Index>,
}

struct Index {
    fields: Fields,
    is_unique: bool,
}

/// Fields by their numbers, one to four, each once.
struct Fields(Vec<usize>);

/// Fields of a key or index at most: parts of a key.
const FIELDS_MAX: usize = 4;

impl Table {
    /// Reads the attribute; none if there is none.
    pub fn parse(attrs: &[Attribute], members: &[Member]) -> Result<Option<Table>> {
        let Some(attr) = attrs.iter().find(|attr| attr.path().is_ident("table")) else { return Ok(None) };
        let (mut key, mut indexes) = (None, Vec::new());
        for attr in attrs.iter().filter(|attr| attr.path().is_ident("table")) {
            attr.parse_nested_meta(|meta| {
                if meta.path.is_ident("key") {
                    if key.replace(Fields::parse(&meta, members)?).is_some() {
                        return Err(meta.error("given twice"));
                    }
                } else if meta.path.is_ident("index") || meta.path.is_ident("unique") {
                    let is_unique = meta.path.is_ident("unique");
                    let index = Index { fields: Fields::parse(&meta, members)?, is_unique };
                    if indexes.iter().any(|other: &Index| other.fields.0 == index.fields.0) {
                        return Err(meta.error("there is an index of these fields already"));
                    }
                    indexes.push(index);
                } else {
                    return Err(
                        meta.error("a table takes `key = FIELD`, `index(FIELD, ..)` and `unique(FIELD, ..)`")
                    );
                }
                Ok(())
            })?;
        }
        let key =
            key.ok_or_else(|| Error::new_spanned(attr, "a table has a key: `#[table(key = FIELD)]`"))?;
        Ok(Some(Table { key, indexes }))
    }

    /// Says whether the field is part of the key or of an index.
    pub fn has(&self, field: usize) -> bool {
        self.is_key(field) || self.indexes.iter().any(|index| index.fields.0.contains(&field))
    }

    fn is_key(&self, field: usize) -> bool {
        self.key.0.contains(&field)
    }

    /// The numbers of the indexes that are made of the field.
    fn indexes_of(&self, field: usize) -> impl Iterator<Item = usize> {
        let of = self.indexes.iter().enumerate().filter(move |(_, index)| index.fields.0.contains(&field));
        of.map(|(i, _)| i)
    }
}

impl Fields {
    /// Fields in parentheses, or a key behind `=`: one, or several in parentheses.
    fn parse(meta: &ParseNestedMeta<'_>, members: &[Member]) -> Result<Fields> {
        let is_key = meta.path.is_ident("key");
        if is_key {
            // Not `key(a, b)`: linters, which can read that, take fields of two indexes for attributes that
            // were given twice.
            meta.value()?;
        }
        let names = if is_key && !meta.input.peek(token::Paren) {
            vec![meta.input.call(Ident::parse_any)?]
        } else {
            let content;
            parenthesized!(content in meta.input);
            content.parse_terminated(Ident::parse_any, Token![,])?.into_iter().collect::<Vec<_>>()
        };
        if !(1..=FIELDS_MAX).contains(&names.len()) {
            return Err(meta.error("a key or an index has one to four fields"));
        }
        let mut fields = Vec::new();
        for name in names {
            let field = members.iter().position(|member| member.ident.unraw() == name.unraw());
            let Some(field) = field else {
                return Err(Error::new(name.span(), format!("there is no field `{name}`")));
            };
            if fields.contains(&field) {
                return Err(Error::new(name.span(), "the field is there already"));
            }
            fields.push(field);
        }
        Ok(Fields(fields))
    }

    /// The names of the fields, as the table keeps them.
    fn names(&self, input: &Input) -> String {
        self.0.iter().map(|i| input.members[*i].name()).collect::<Vec<_>>().join(", ")
    }

    /// The type of the key: that of one field, or a tuple.
    fn ty(&self, input: &Input) -> TokenStream {
        let types = self.0.iter().map(|i| &input.members[*i].ty);
        if self.0.len() == 1 { quote!(#(#types)*) } else { quote!((#(#types),*)) }
    }

    /// The argument of the key, of these parts.
    fn args(&self, parts: impl Iterator<Item = TokenStream>) -> TokenStream {
        if self.0.len() == 1 { quote!(#(#parts)*) } else { quote!((#(#parts),*)) }
    }

    /// The argument of the key of a row at hand.
    fn args_of_row(&self, input: &Input, key: &TokenStream) -> TokenStream {
        self.args(self.0.iter().map(|i| {
            let field = &input.members[*i].ident;
            quote!(#key::Key::arg(&self.#field))
        }))
    }

    /// Statements that append the key of a stored row.
    fn put_stored(&self, input: &Input, owner: &TokenStream, key: &TokenStream) -> TokenStream {
        let ty = self.ty(input);
        let names = || self.0.iter().map(|i| format_ident!("field_{}", i));
        let loads = self.0.iter().zip(names()).map(|(i, name)| {
            let load = asked(input, &input.members[*i], quote!(load));
            let at = offset(input, owner, *i);
            quote!(let #name = #load(stored, #at)?;)
        });
        let args = self.args(names().map(|name| quote!(#key::Key::arg(&#name))));
        quote! {
            #(#loads)*
            <#ty as #key::Key>::put(#args, form, to);
        }
    }
}

/// The editor's name, and its declaration beside the class.
pub fn guard(input: &Input) -> TokenStream {
    let (ident, vis, krate) = (&input.ident, &input.vis, &input.krate);
    let guard = format_ident!("{}Edit", ident);
    let doc = format!("Changes a row of class [`{}`] in its table: its indexes follow.", ident.unraw());
    quote! {
        #[doc = #doc]
        #vis struct #guard<'t>(#krate::collections::table::RowMut<'t, #ident>);
    }
}

/// The code of a class of rows beside that of the class.
pub fn table(input: &Input, table: &Table, owner: &TokenStream) -> TokenStream {
    let (ident, vis, krate) = (&input.ident, &input.vis, &input.krate);
    let (tables, key, private) =
        (quote!(#krate::collections::table), quote!(#krate::collections::key), quote!(#krate::__private));
    let guard = format_ident!("{}Edit", ident);
    let result = quote!(::core::result::Result<(), #private::Error>);
    let usize = quote!(::core::primitive::usize);
    let (key_type, key_names) = (table.key.ty(input), table.key.names(input));
    let key_args = table.key.args_of_row(input, &key);
    let key_stored = table.key.put_stored(input, owner, &key);
    let (mut declared, mut puts, mut stored, mut consts) = (vec![], vec![], vec![], vec![]);
    for (i, index) in table.indexes.iter().enumerate() {
        let (ty, names, is_unique) = (index.fields.ty(input), index.fields.names(input), index.is_unique);
        declared.push(quote!(#tables::IndexDeclaration::new::<#ty, #key_type>(#names, #is_unique)));
        let args = index.fields.args_of_row(input, &key);
        puts.push(quote!(#i => <#ty as #key::Key>::put(#args, form, to),));
        let put = index.fields.put_stored(input, owner, &key);
        stored.push(quote!(#i => { #put }));
        let name = format_ident!("BY_{}", names.replace(", ", "_").to_uppercase());
        let doc =
            format!("The rows by `{names}`{}.", if is_unique { ", which no two have in common" } else { "" });
        consts.push(quote! {
            #[doc = #doc]
            #vis const #name: #tables::Index<#ident, #ty> = #tables::Index::new(#i);
        });
    }
    let setters = input.members.iter().enumerate().filter(|(i, _)| !table.is_key(*i)).map(|(i, m)| {
        let (field_vis, setter) = (&m.vis, format_ident!("set_{}", m.ident));
        let doc = format!("Sets `{}`.", m.name());
        let at = offset(input, owner, i);
        let (takes, value) = taken(&m.ty, m.converts);
        let indexes = table.indexes_of(i).collect::<Vec<_>>();
        let set = if indexes.is_empty() {
            let set = asked(input, m, quote!(set_field));
            quote!(#set(#value, self.0.raw(), #i, #at))
        } else {
            quote!(self.0.set(#i, #at, #value, &[#(#indexes),*]))
        };
        quote! {
            #[doc = #doc]
            #field_vis fn #setter(&self, value: #takes) -> #result {
                #set
            }
        }
    });
    quote! {
        #[automatically_derived]
        impl #tables::Row for #ident {
            type Key = #key_type;
            type Edit<'t> = #guard<'t>;

            const TABLE: #tables::Declaration = #tables::Declaration {
                class: <#ident as #owner>::NAME,
                key: #key_names,
                indexes: &[#(#declared),*],
            };

            fn guard<'t>(row: #tables::RowMut<'t, #ident>) -> #guard<'t> {
                #guard(row)
            }

            fn key(&self) -> <Self::Key as #key::Key>::Arg<'_> {
                #key_args
            }

            #[allow(unused_variables)]
            fn put_index(&self, index: #usize, form: #key::Form, to: &mut #key::KeyBytes) {
                match index {
                    #(#puts)*
                    _ => {}
                }
            }

            fn put_stored_key(stored: &#private::Stored<'_>, form: #key::Form, to: &mut #key::KeyBytes) -> #result {
                #key_stored
                ::core::result::Result::Ok(())
            }

            #[allow(unused_variables)]
            fn put_stored_index(
                stored: &#private::Stored<'_>,
                index: #usize,
                form: #key::Form,
                to: &mut #key::KeyBytes,
            ) -> #result {
                match index {
                    #(#stored)*
                    _ => {}
                }
                ::core::result::Result::Ok(())
            }
        }

        #[allow(dead_code, private_interfaces)]
        impl #ident {
            #(#consts)*
        }

        #[allow(dead_code, private_interfaces, non_snake_case, clippy::all)]
        impl<'t> #guard<'t> {
            /// The row's reference.
            #vis fn reference(&self) -> #private::wire::record::Ref<#ident> {
                self.0.reference()
            }

            #(#setters)*
        }
    }
}
