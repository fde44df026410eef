//! A model that the program writes itself: a chip in its package, an assembly of a body and of leads.
//!
//! It stands for real models where none is at hand. The structure is theirs: products with definitions and
//! shapes, solids bounded by faces, edges and points, and a placement for each use of a part.

use std::fmt::Write;

use tercel_step::write_file;

/// The name of the bundled model.
pub const NAME: &str = "sample.step";

/// The bundled model: a chip of 8 leads of one shape, on two sides.
pub fn bundled() -> String {
    chip("CHIP-8", 8, 1)
}

/// A chip with so many leads, of so many shapes by turns; 1 of each at least. A shape is a part of its own,
/// with a solid of 141 instances.
pub fn chip(name: &str, leads: u32, shapes: u32) -> String {
    let mut writer = Writer::default();
    let context = writer.context();
    let assembly = writer.product(&context, name, None);
    let body = writer.product(&context, "BODY", Some(([-3.0, -2.0, 0.1], [6.0, 4.0, 1.4])));
    let used = writer.direction_axes([0.0, 0.0, 0.0]);
    writer.usage(&assembly, &body, "body", used);
    let shapes: Vec<Product> = (0..shapes.max(1))
        .map(|n| {
            let length = 1.0 + f64::from(n) / 64.0;
            writer.product(&context, &format!("LEAD-{}", n + 1), Some(([-0.2, 0.0, 0.0], [0.4, length, 0.2])))
        })
        .collect();
    for n in 0..leads.max(1) {
        let side = if n % 2 == 0 { 2.0 } else { -3.0 };
        let placed = writer.direction_axes([f64::from(n / 2) - 1.5, side, 0.0]);
        writer.usage(&assembly, &shapes[n as usize % shapes.len()], &format!("lead {}", n + 1), placed);
    }
    write_file(name, "AUTOMOTIVE_DESIGN { 1 0 10303 214 1 1 1 1 }", &writer.text)
}

/// The instances so far.
#[derive(Default)]
struct Writer {
    last: u64,
    text: String,
}

/// Instances that all products share.
struct Context {
    product: u64,
    definition: u64,
    geometry: u64,
}

/// The instances of a product that others refer to.
struct Product {
    definition: u64,
    representation: u64,
    axes: u64,
}

impl Writer {
    fn add(&mut self, record: std::fmt::Arguments<'_>) -> u64 {
        self.last += 1;
        // Writing into a string does not fail.
        let _ = writeln!(self.text, "#{}={record};", self.last);
        self.last
    }

    fn context(&mut self) -> Context {
        let application = self
            .add(format_args!("APPLICATION_CONTEXT('core data for automotive mechanical design processes')"));
        self.add(format_args!("APPLICATION_PROTOCOL_DEFINITION('international standard','automotive_design',2000,#{application})"));
        let product = self.add(format_args!("PRODUCT_CONTEXT('',#{application},'mechanical')"));
        let definition =
            self.add(format_args!("PRODUCT_DEFINITION_CONTEXT('part definition',#{application},'design')"));
        let length = self.add(format_args!("(LENGTH_UNIT()NAMED_UNIT(*)SI_UNIT(.MILLI.,.METRE.))"));
        let angle = self.add(format_args!("(NAMED_UNIT(*)PLANE_ANGLE_UNIT()SI_UNIT($,.RADIAN.))"));
        let solid = self.add(format_args!("(NAMED_UNIT(*)SI_UNIT($,.STERADIAN.)SOLID_ANGLE_UNIT())"));
        let exact = self.add(format_args!(
            "UNCERTAINTY_MEASURE_WITH_UNIT(LENGTH_MEASURE(1.E-07),#{length},'distance_accuracy_value','confusion accuracy')"
        ));
        let geometry = self.add(format_args!(
            "(GEOMETRIC_REPRESENTATION_CONTEXT(3)GLOBAL_UNCERTAINTY_ASSIGNED_CONTEXT((#{exact}))\
             GLOBAL_UNIT_ASSIGNED_CONTEXT((#{length},#{angle},#{solid}))REPRESENTATION_CONTEXT('','3D'))"
        ));
        Context { product, definition, geometry }
    }

    /// A product; with the corner and the edges of a box, a part, else an assembly.
    fn product(&mut self, context: &Context, name: &str, solid: Option<([f64; 3], [f64; 3])>) -> Product {
        let product = self.add(format_args!("PRODUCT('{name}','{name}','',(#{}))", context.product));
        self.add(format_args!("PRODUCT_RELATED_PRODUCT_CATEGORY('part',$,(#{product}))"));
        let formation = self.add(format_args!("PRODUCT_DEFINITION_FORMATION('','',#{product})"));
        let definition =
            self.add(format_args!("PRODUCT_DEFINITION('design','',#{formation},#{})", context.definition));
        let shape = self.add(format_args!("PRODUCT_DEFINITION_SHAPE('','',#{definition})"));
        let axes = self.direction_axes([0.0; 3]);
        let geometry = context.geometry;
        let representation = match solid {
            Some((corner, size)) => {
                let solid = self.solid(corner, size);
                self.add(format_args!(
                    "ADVANCED_BREP_SHAPE_REPRESENTATION('',(#{axes},#{solid}),#{geometry})"
                ))
            }
            None => self.add(format_args!("SHAPE_REPRESENTATION('',(#{axes}),#{geometry})")),
        };
        self.add(format_args!("SHAPE_DEFINITION_REPRESENTATION(#{shape},#{representation})"));
        Product { definition, representation, axes }
    }

    /// The use of a part in an assembly, at a placement.
    fn usage(&mut self, assembly: &Product, part: &Product, name: &str, placed: u64) {
        let usage = self.add(format_args!(
            "NEXT_ASSEMBLY_USAGE_OCCURRENCE('{name}','{name}','',#{},#{},$)",
            assembly.definition, part.definition
        ));
        let shape = self.add(format_args!("PRODUCT_DEFINITION_SHAPE('','',#{usage})"));
        let moved = self.add(format_args!("ITEM_DEFINED_TRANSFORMATION('','',#{},#{placed})", part.axes));
        let related = self.add(format_args!(
            "(REPRESENTATION_RELATIONSHIP('','',#{},#{})REPRESENTATION_RELATIONSHIP_WITH_TRANSFORMATION(#{moved})\
             SHAPE_REPRESENTATION_RELATIONSHIP())",
            part.representation, assembly.representation
        ));
        self.add(format_args!("CONTEXT_DEPENDENT_SHAPE_REPRESENTATION(#{related},#{shape})"));
    }

    fn point(&mut self, at: [f64; 3]) -> u64 {
        let [x, y, z] = at.map(real);
        self.add(format_args!("CARTESIAN_POINT('',({x},{y},{z}))"))
    }

    fn direction(&mut self, along: [f64; 3]) -> u64 {
        let [x, y, z] = along.map(real);
        self.add(format_args!("DIRECTION('',({x},{y},{z}))"))
    }

    fn axes(&mut self, at: u64, along: [f64; 3], beside: [f64; 3]) -> u64 {
        let (along, beside) = (self.direction(along), self.direction(beside));
        self.add(format_args!("AXIS2_PLACEMENT_3D('',#{at},#{along},#{beside})"))
    }

    fn direction_axes(&mut self, at: [f64; 3]) -> u64 {
        let at = self.point(at);
        self.axes(at, [0.0, 0.0, 1.0], [1.0, 0.0, 0.0])
    }

    /// A box: corners are numbered by their bits, one for each coordinate.
    fn solid(&mut self, corner: [f64; 3], size: [f64; 3]) -> u64 {
        let place =
            |n: usize| std::array::from_fn(|i| corner[i] + if n >> i & 1 == 1 { size[i] } else { 0.0 });
        let points: Vec<u64> = (0..8).map(|n| self.point(place(n))).collect();
        let vertices: Vec<u64> =
            points.iter().map(|point| self.add(format_args!("VERTEX_POINT('',#{point})"))).collect();
        let mut edges = Vec::new();
        for (axis, length) in size.into_iter().enumerate() {
            for from in (0..8usize).filter(|n| n >> axis & 1 == 0) {
                let to = from | 1 << axis;
                let along = self.direction(std::array::from_fn(|i| f64::from(u8::from(i == axis))));
                let vector = self.add(format_args!("VECTOR('',#{along},{})", real(length)));
                let line = self.add(format_args!("LINE('',#{},#{vector})", points[from]));
                let edge = self
                    .add(format_args!("EDGE_CURVE('',#{},#{},#{line},.T.)", vertices[from], vertices[to]));
                edges.push((from, to, edge));
            }
        }
        let mut faces = Vec::new();
        for axis in 0..3 {
            for upper in [false, true] {
                let (a, b) = (1usize << ((axis + 1) % 3), 1usize << ((axis + 2) % 3));
                let first = usize::from(upper) << axis;
                // Seen from outside a loop turns left.
                let ring = if upper { [0, a, a | b, b] } else { [0, b, a | b, a] }.map(|n| n | first);
                let oriented: Vec<String> = (0..4)
                    .map(|i| {
                        let (from, to) = (ring[i], ring[(i + 1) % 4]);
                        let of =
                            |edge: &&(usize, usize, u64)| (edge.0, edge.1) == (from.min(to), from.max(to));
                        let edge = edges.iter().find(of).map_or(0, |edge| edge.2);
                        let sense = if from < to { 'T' } else { 'F' };
                        format!("#{}", self.add(format_args!("ORIENTED_EDGE('',*,*,#{edge},.{sense}.)")))
                    })
                    .collect();
                let ring_of = self.add(format_args!("EDGE_LOOP('',({}))", oriented.join(",")));
                let bound = self.add(format_args!("FACE_OUTER_BOUND('',#{ring_of},.T.)"));
                let normal =
                    std::array::from_fn(|i| if i == axis { f64::from(i8::from(upper) * 2 - 1) } else { 0.0 });
                let beside = std::array::from_fn(|i| f64::from(u8::from(i == (axis + 1) % 3)));
                let axes = self.axes(points[first], normal, beside);
                let plane = self.add(format_args!("PLANE('',#{axes})"));
                faces.push(format!(
                    "#{}",
                    self.add(format_args!("ADVANCED_FACE('',(#{bound}),#{plane},.T.)"))
                ));
            }
        }
        let shell = self.add(format_args!("CLOSED_SHELL('',({}))", faces.join(",")));
        self.add(format_args!("MANIFOLD_SOLID_BREP('',#{shell})"))
    }
}

/// A real as the files have it: with a point.
fn real(value: f64) -> String {
    let mut text = String::new();
    tercel_step::write_value(&tercel_step::Value::Real(value), &mut text);
    text
}

#[cfg(test)]
mod tests {
    use tercel_step::Limits;

    use super::*;
    use crate::draft::read;
    use crate::source::{File, Source};

    #[test]
    fn chip_has_its_parts_and_each_edge_twice() {
        for (leads, shapes) in [(1, 1), (8, 1), (6, 3)] {
            let text = chip("C", leads, shapes);
            let draft = read(&File::written("c", text), Limits::default()).unwrap();
            let count = |name: &str| draft.of_entity(name).len() as u32;
            let solids = shapes + 1;
            assert_eq!(count("PRODUCT"), solids + 1);
            assert_eq!(count("NEXT_ASSEMBLY_USAGE_OCCURRENCE"), leads + 1);
            assert_eq!((count("EDGE_CURVE"), count("ORIENTED_EDGE")), (12 * solids, 24 * solids));
            let mut uses = vec![[0, 0]; draft.len()];
            for n in draft.of_entity("ORIENTED_EDGE") {
                let oriented = draft.instance(*n as usize);
                uses[oriented.refs[0] as usize][usize::from(oriented.values.ends_with(b"T"))] += 1;
            }
            for edge in draft.of_entity("EDGE_CURVE") {
                assert_eq!(uses[*edge as usize], [1, 1], "an edge is gone along once in each direction");
            }
        }
    }

    #[test]
    fn the_bundled_model_has_some_hundred_instances() {
        let draft = read(&Source::sample().files[0], Limits::default()).unwrap();
        assert!((200..=2_000).contains(&draft.len()), "{}", draft.len());
    }
}
