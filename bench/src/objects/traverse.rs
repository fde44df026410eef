//! The traversals, written as in an ordinary application.

use tercel::{Client, Error, Obj, Ref, Tx};

use super::super::native::{Tally, Visited};
use super::build::ROOT;
use super::classes::{Assembly, Composite, Module, Part};

/// Traversal T1: depth first through all atomic parts of each composite part referred to as private.
///
/// # Errors
/// The errors of transactions; `NotFound` if nothing was built.
pub fn t1(tx: &Tx<'_>, visited: &mut Visited) -> Result<Tally, Error> {
    let mut tally = Tally::default();
    each_private(&design_root(tx)?, &mut |composite| {
        let root = composite.root_part().get()?;
        visited.begin();
        visited.first(number(&root));
        visit(&root, visited, &mut tally)
    })?;
    Ok(tally)
}

/// Traversal T1 with a transaction for each base assembly, for caches too small to remember all that the
/// whole reads; or T1-, which leaves each composite part after `parts_max` of its atomic parts.
///
/// # Errors
/// As [`t1`].
pub fn t1_in_steps(client: &Client, visited: &mut Visited, parts_max: u32) -> Result<Tally, Error> {
    let bases = client.run(|tx| {
        let mut bases = Vec::new();
        collect_bases(&design_root(tx)?, &mut bases)?;
        Ok(bases)
    })?;
    let mut tally = Tally::default();
    for base in bases {
        tally = client.run(|tx| {
            let mut tally = tally;
            each_private(&tx.get(base)?, &mut |composite| {
                let root = composite.root_part().get()?;
                visited.begin();
                visited.first(number(&root));
                visit_some(&root, visited, &mut tally, &mut { parts_max })
            })?;
            Ok(tally)
        })?;
    }
    Ok(tally)
}

/// Traversal T6: the root part of each composite part referred to as private.
///
/// # Errors
/// As [`t1`].
pub fn t6(tx: &Tx<'_>) -> Result<Tally, Error> {
    let mut tally = Tally::default();
    each_private(&design_root(tx)?, &mut |composite| {
        let root = composite.root_part().get()?;
        tally.visit(root.id(), root.x(), root.y());
        Ok(())
    })?;
    Ok(tally)
}

/// Traversal T2b: T1, and x and y of each part it visits change places.
///
/// # Errors
/// As [`t1`].
pub fn t2b(tx: &Tx<'_>, visited: &mut Visited) -> Result<Tally, Error> {
    let mut tally = Tally::default();
    each_private(&design_root(tx)?, &mut |composite| {
        let root = composite.root_part().get()?;
        visited.begin();
        visited.first(number(&root));
        swap(&root, visited, &mut tally)
    })?;
    Ok(tally)
}

pub(super) fn design_root<'t>(tx: &'t Tx<'_>) -> Result<Obj<'t, Assembly>, Error> {
    tx.get_root::<Module>(ROOT)?.design_root().get()
}

/// Calls `f` with each composite part referred to as private at or below an assembly.
pub(super) fn each_private(
    assembly: &Obj<'_, Assembly>,
    f: &mut impl FnMut(&Obj<'_, Composite>) -> Result<(), Error>,
) -> Result<(), Error> {
    for below in assembly.assemblies() {
        each_private(&below?, f)?;
    }
    for composite in assembly.private() {
        f(&composite?)?;
    }
    Ok(())
}

fn collect_bases(assembly: &Obj<'_, Assembly>, bases: &mut Vec<Ref<Assembly>>) -> Result<(), Error> {
    if !assembly.private().is_empty() {
        bases.push(assembly.reference());
    }
    for below in assembly.assemblies() {
        collect_bases(&below?, bases)?;
    }
    Ok(())
}

fn visit(part: &Obj<'_, Part>, visited: &mut Visited, tally: &mut Tally) -> Result<(), Error> {
    tally.visit(part.id(), part.x(), part.y());
    for connection in part.to() {
        let to = connection?.to().get()?;
        if visited.first(number(&to)) {
            visit(&to, visited, tally)?;
        }
    }
    Ok(())
}

/// The same while there are parts `left`.
fn visit_some(
    part: &Obj<'_, Part>,
    visited: &mut Visited,
    tally: &mut Tally,
    left: &mut u32,
) -> Result<(), Error> {
    tally.visit(part.id(), part.x(), part.y());
    *left -= 1;
    for connection in part.to() {
        if *left == 0 {
            break;
        }
        let to = connection?.to().get()?;
        if visited.first(number(&to)) {
            visit_some(&to, visited, tally, left)?;
        }
    }
    Ok(())
}

fn swap(part: &Obj<'_, Part>, visited: &mut Visited, tally: &mut Tally) -> Result<(), Error> {
    let (x, y) = (part.x(), part.y());
    tally.visit(part.id(), x, y);
    let edit = part.edit()?;
    edit.set_x(y)?;
    edit.set_y(x)?;
    for connection in part.to() {
        let to = connection?.to().get()?;
        if visited.first(number(&to)) {
            swap(&to, visited, tally)?;
        }
    }
    Ok(())
}

/// A part's number, counted from zero.
pub(super) fn number(part: &Obj<'_, Part>) -> u32 {
    part.id().wrapping_sub(1)
}
