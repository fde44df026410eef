//! Classes out of the fuzzer's bytes.

use arbitrary::{Result, Unstructured};
use tercel_wire::layout::{Layout, Shape};
use tercel_wire::schema::Scalar;

/// A class of up to seven fields, admissible or not.
pub fn layout(u: &mut Unstructured<'_>, depth: usize) -> Result<Layout> {
    Ok(Layout::new("C".into(), fields(u, depth)?))
}

fn fields(u: &mut Unstructured<'_>, depth: usize) -> Result<Vec<(String, Shape)>> {
    (0..u.int_in_range(0..=7)?)
        .map(|i| Ok((format!("f{}", u.int_in_range(0..=9)? * 10 + i), shape(u, depth)?)))
        .collect()
}

/// The same class later: fields dropped, added, moved, widened.
pub fn changed(u: &mut Unstructured<'_>, old: &Layout) -> Result<Layout> {
    let mut fields = Vec::new();
    for place in old.fields() {
        match u.int_in_range(0..=5)? {
            0 => {}
            1 => fields.push((place.name.clone(), shape(u, 0)?)),
            2 => fields.insert(0, (place.name.clone(), place.shape.clone())),
            4 if matches!(place.shape, Shape::Enum(_)) => {
                fields.push((place.name.clone(), grown(u, &place.shape)?));
            }
            3 => {
                fields.push((format!("new{}", fields.len()), shape(u, 1)?));
                fields.push((place.name.clone(), place.shape.clone()));
            }
            _ => fields.push((place.name.clone(), place.shape.clone())),
        }
    }
    Ok(Layout::new("C".into(), fields))
}

/// The same class later, with records inside that have changed, too.
pub fn changed_deeply(u: &mut Unstructured<'_>, old: &Layout) -> Result<Layout> {
    let mut fields = Vec::new();
    for place in changed(u, old)?.fields() {
        fields.push((place.name.clone(), later(u, &place.shape)?));
    }
    Ok(Layout::new("C".into(), fields))
}

/// A type later: the records in it changed, numbers made wider.
fn later(u: &mut Unstructured<'_>, shape: &Shape) -> Result<Shape> {
    Ok(match shape {
        Shape::List(t) => Shape::List(Box::new(later(u, t)?)),
        Shape::Option(t) => Shape::Option(Box::new(later(u, t)?)),
        Shape::Record(layout) => Shape::Record(Box::new(changed_deeply(u, layout)?)),
        Shape::Scalar(Scalar::U8 | Scalar::U16) => Shape::Scalar(*u.choose(&[Scalar::U16, Scalar::I64])?),
        Shape::Scalar(Scalar::F32) => Shape::Scalar(Scalar::F64),
        other => other.clone(),
    })
}

/// The same enum with another variant behind.
fn grown(u: &mut Unstructured<'_>, shape: &Shape) -> Result<Shape> {
    let Shape::Enum(old) = shape else { return Ok(shape.clone()) };
    let variants = old.fields().iter().filter_map(|p| match &p.shape {
        Shape::Record(fields) => Some((**fields).clone()),
        _ => None,
    });
    let added = Layout::new("Added".into(), fields(u, 0)?);
    Ok(Shape::variants(old.name().into(), variants.chain([added]).collect()))
}

fn shape(u: &mut Unstructured<'_>, depth: usize) -> Result<Shape> {
    let simple = if depth == 0 { 5 } else { 9 };
    Ok(match u.int_in_range(0..=simple)? {
        0 => Shape::Scalar(*u.choose(&Scalar::ALL)?),
        1 => Shape::Array(*u.choose(&Scalar::ALL)?, u.int_in_range(0..=5)?),
        2 => Shape::Text,
        3 => Shape::Bytes,
        4 => Shape::Ref(u.choose(&["", "C", "D"])?.to_string()),
        5 => Shape::Far(u.choose(&["", "C", "D"])?.to_string()),
        6 => Shape::List(Box::new(shape(u, depth - 1)?)),
        7 => Shape::Option(Box::new(shape(u, depth - 1)?)),
        8 => Shape::Record(Box::new(layout(u, depth - 1)?)),
        _ => {
            let variants = (0..u.int_in_range(0..=3)?)
                .map(|i| Ok(Layout::new(format!("V{i}"), fields(u, depth - 1)?)))
                .collect::<Result<_>>()?;
            Shape::variants("E".into(), variants)
        }
    })
}
