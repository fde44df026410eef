//! Products, their parts, and the way from a product to its geometry.
//!
//! A file ties shapes to products from below: the shape names the definition, the definition the product. So
//! the way down from a product goes along some references backwards. They are those of a handful of entities,
//! of which a file has a few for each product; [`Links`] turns them round.

use std::collections::{BTreeMap, HashMap};

use tercel::{Client, Error, Ref, Tx};
use tercel_term::fail::Failure;

use crate::model::{Instance, Model};
use crate::query::{Walk, by_id, of_entity};
use crate::source::printable;
use crate::values::leading_texts;

/// Entities that lead down from the instance that they name first.
const DOWN: [&str; 8] = [
    "PRODUCT_DEFINITION_FORMATION",
    "PRODUCT_DEFINITION_FORMATION_WITH_SPECIFIED_SOURCE",
    "PRODUCT_DEFINITION",
    "PRODUCT_DEFINITION_WITH_ASSOCIATED_DOCUMENTS",
    USAGE,
    "PRODUCT_DEFINITION_SHAPE",
    "SHAPE_DEFINITION_REPRESENTATION",
    "SHAPE_REPRESENTATION_RELATIONSHIP",
];

/// The use of a product in another one.
const USAGE: &str = "NEXT_ASSEMBLY_USAGE_OCCURRENCE";

/// Entities of definitions of products.
const DEFINITIONS: [&str; 2] = ["PRODUCT_DEFINITION", "PRODUCT_DEFINITION_WITH_ASSOCIATED_DOCUMENTS"];

/// The relation between two shapes of one product, which leads both ways.
const SAME_SHAPE: &str = "SHAPE_REPRESENTATION_RELATIONSHIP";

/// By the number of an instance: those that lead down from it.
pub struct Links(HashMap<u32, Vec<Ref<Instance>>>);

impl Links {
    /// The links of a model.
    ///
    /// # Errors
    /// Those of reading.
    pub fn of(tx: &Tx<'_>, model: Ref<Model>) -> Result<Links, Error> {
        let mut links: HashMap<u32, Vec<Ref<Instance>>> = HashMap::new();
        for name in DOWN {
            for instance in of_entity(tx, model, name)? {
                let link = tx.get(instance)?;
                let ends = if name == SAME_SHAPE { 2 } else { 1 };
                for end in link.refs().iter().take(ends) {
                    links.entry(end?.number()).or_default().push(instance);
                }
            }
        }
        Ok(Links(links))
    }

    /// Visits all that belongs to an instance: what it reaches, and what leads down from there, again and
    /// again.
    ///
    /// # Errors
    /// Those of reading, and what `each` gives.
    pub fn walk<'t>(
        &self,
        tx: &'t Tx<'_>,
        start: Ref<Instance>,
        each: impl FnMut(&tercel::Obj<'t, Instance>) -> Result<(), Error>,
    ) -> Result<Walk, Error> {
        self.walk_by(Walk::default(), tx, start, each)
    }

    /// [`Links::walk`] by a traversal that does not go everywhere.
    ///
    /// # Errors
    /// As [`Links::walk`].
    pub fn walk_by<'t>(
        &self,
        mut walk: Walk,
        tx: &'t Tx<'_>,
        start: Ref<Instance>,
        mut each: impl FnMut(&tercel::Obj<'t, Instance>) -> Result<(), Error>,
    ) -> Result<Walk, Error> {
        let mut todo = vec![start];
        while let Some(next) = todo.pop() {
            walk.from(tx, next, &mut |instance| {
                if let Some(below) = self.0.get(&instance.number()) {
                    todo.extend(below);
                }
                each(instance)
            })?;
        }
        Ok(walk)
    }
}

/// The instance that a user names: `#12`, or a product by its id or name.
///
/// # Errors
/// If there is none, or several products have the name; those of reading.
pub fn find(client: &Client, model: Ref<Model>, what: &str) -> Result<Ref<Instance>, Failure> {
    if let Some(digits) = what.strip_prefix('#') {
        let id = digits
            .parse()
            .map_err(|_| Failure::new(format!("`{what}` is no instance: write for example #12")).code(2))?;
        return client
            .run(|tx| by_id(tx, model, id))?
            .ok_or_else(|| Failure::new(format!("the model has no instance {what}")));
    }
    let products = client.run(|tx| {
        let mut products = Vec::new();
        for product in of_entity(tx, model, "PRODUCT")? {
            let read = tx.get(product)?;
            let texts: Vec<String> = leading_texts(&read.values()?).into_iter().map(printable).collect();
            products.push((product, read.id(), texts));
        }
        Ok(products)
    })?;
    let named: Vec<_> =
        products.iter().filter(|(_, _, texts)| texts.iter().take(2).any(|text| text == what)).collect();
    match named[..] {
        [(product, ..)] => Ok(*product),
        [] => {
            let names: Vec<&str> =
                products.iter().filter_map(|(_, _, texts)| Some(&**texts.first()?)).take(8).collect();
            let failure = Failure::new(format!("the model has no product `{what}`"));
            Err(match names.is_empty() {
                true => failure.next("name an instance, such as '#12'"),
                false => {
                    failure.next(format!("it has {}; or name an instance, such as '#12'", names.join(", ")))
                }
            })
        }
        _ => {
            let ids: Vec<String> = named.iter().map(|(_, id, _)| format!("'#{id}'")).collect();
            Err(Failure::new(format!("{} products are called `{what}`", named.len()))
                .next(format!("name one by its instance: {}", ids.join(", "))))
        }
    }
}

/// A product in its place among those of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// The number behind `#` of its definition.
    pub id: u64,
    /// Its product's id, or the name if that is empty; printable.
    pub product: String,
    /// The parts that it uses and how often, by their place in the list, in the order of their first use.
    pub uses: Vec<(usize, u64)>,
    /// Set if another one uses it.
    pub is_used: bool,
}

/// The products of a model and how they are used.
///
/// # Errors
/// Those of reading.
pub fn parts(tx: &Tx<'_>, model: Ref<Model>) -> Result<Vec<Part>, Error> {
    let (mut parts, mut places) = (Vec::new(), BTreeMap::new());
    let mut place = |definition: &tercel::Obj<'_, Instance>, parts: &mut Vec<Part>| -> Result<usize, Error> {
        if let Some(place) = places.get(&definition.number()) {
            return Ok(*place);
        }
        places.insert(definition.number(), parts.len());
        parts.push(Part {
            id: definition.id(),
            product: product_of(definition)?,
            uses: Vec::new(),
            is_used: false,
        });
        Ok(parts.len() - 1)
    };
    for name in DEFINITIONS {
        for definition in of_entity(tx, model, name)? {
            place(&tx.get(definition)?, &mut parts)?;
        }
    }
    for usage in of_entity(tx, model, USAGE)? {
        let usage = tx.get(usage)?;
        let mut ends = usage.refs().iter();
        let (Some(whole), Some(part)) = (ends.next(), ends.next()) else { continue };
        let (whole, part) = (place(&whole?, &mut parts)?, place(&part?, &mut parts)?);
        parts[part].is_used = true;
        match parts[whole].uses.iter_mut().find(|(used, _)| *used == part) {
            Some((_, times)) => *times += 1,
            None => parts[whole].uses.push((part, 1)),
        }
    }
    Ok(parts)
}

/// The id of the product of a definition: definition, formation, product.
fn product_of(definition: &tercel::Obj<'_, Instance>) -> Result<String, Error> {
    let Some(formation) = definition.refs().find(0)? else { return Ok(String::new()) };
    let Some(product) = formation.refs().find(0)? else { return Ok(String::new()) };
    let values = product.values()?;
    let texts = leading_texts(&values);
    Ok(texts.into_iter().take(2).find(|text| !text.is_empty()).map_or(String::new(), printable))
}

/// A line of a bill of materials.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// Products above it.
    pub depth: usize,
    /// The place of the part.
    pub part: usize,
    /// Its uses in the product above.
    pub times: u64,
    /// Its uses in the whole.
    pub total: u64,
}

/// Lines of a bill that are told: products used in products multiply.
const LINES_MAX: usize = 100_000;

/// The bill of materials of a part: the part, and below it those that it uses.
///
/// # Errors
/// If a part contains itself, or the bill is too long to be told.
pub fn bill(parts: &[Part], top: usize) -> Result<Vec<Line>, Failure> {
    let mut lines = Vec::new();
    // Lines to be told, each with the number of parts above it.
    let mut todo = vec![Line { depth: 0, part: top, times: 1, total: 1 }];
    let mut above: Vec<usize> = Vec::new();
    while let Some(line) = todo.pop() {
        above.truncate(line.depth);
        let part = &parts[line.part];
        if above.contains(&line.part) {
            return Err(Failure::new(format!(
                "the product {} of #{} is a part of itself",
                part.product, part.id
            ))
            .code(3));
        }
        if lines.len() == LINES_MAX {
            return Err(Failure::new(format!("the bill has more than {LINES_MAX} lines"))
                .next("ask for one of its parts"));
        }
        above.push(line.part);
        let below = part.uses.iter().rev().map(|(part, times)| Line {
            depth: line.depth + 1,
            part: *part,
            times: *times,
            total: line.total.saturating_mul(*times),
        });
        todo.extend(below);
        lines.push(line);
    }
    Ok(lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(name: &str, uses: &[(usize, u64)]) -> Part {
        Part { id: 1, product: name.into(), uses: uses.to_vec(), is_used: false }
    }

    #[test]
    fn bills_multiply_downwards() {
        let parts = [part("car", &[(1, 4), (2, 1)]), part("wheel", &[(2, 5)]), part("bolt", &[])];
        let lines: Vec<_> =
            bill(&parts, 0).unwrap().iter().map(|l| (l.depth, l.part, l.times, l.total)).collect();
        assert_eq!(lines, [(0, 0, 1, 1), (1, 1, 4, 4), (2, 2, 5, 20), (1, 2, 1, 1)]);
    }

    #[test]
    fn a_part_of_itself_is_told() {
        let parts = [part("a", &[(1, 1)]), part("b", &[(0, 1)])];
        assert!(bill(&parts, 0).unwrap_err().what.contains("a part of itself"));
    }

    #[test]
    fn endless_bills_are_refused() {
        let mut parts: Vec<Part> = (0..40).map(|n| part("x", &[(n + 1, 1), (n + 2, 1)])).collect();
        parts.extend([part("y", &[]), part("z", &[])]);
        assert!(bill(&parts, 0).unwrap_err().what.contains("more than 100000 lines"));
    }
}
