use std::convert::Infallible;
use std::hash::{DefaultHasher, Hash, Hasher};

use super::*;

/// A base assembly: its index, private and shared components.
type Base = (u32, Vec<u32>, Vec<u32>);

/// Keeps what it is given as far as the tests ask.
#[derive(Default)]
struct Record {
    order: Vec<&'static str>,
    assemblies: Vec<(u32, Option<u32>, Vec<u32>)>,
    base: Vec<Base>,
    composites: Vec<(Range<u32>, Vec<u32>, Vec<u32>)>,
    parts: Vec<(u32, Range<u32>, Vec<u32>)>,
    connections: Vec<Connection>,
    text_bytes: Vec<usize>,
    digest: DefaultHasher,
}

impl Sink for Record {
    type Error = Infallible;

    fn module(&mut self, module: &Module) -> Result<(), Infallible> {
        self.order.push("module");
        module.hash(&mut self.digest);
        Ok(())
    }

    fn manual(&mut self, manual: &Manual<'_>) -> Result<(), Infallible> {
        self.order.push("manual");
        self.text_bytes.push(manual.text.len());
        manual.hash(&mut self.digest);
        Ok(())
    }

    fn assembly(&mut self, assembly: &Assembly<'_>) -> Result<(), Infallible> {
        self.order.push("assembly");
        assert_eq!(assembly.index as usize, self.assemblies.len());
        let children = match assembly.components {
            Components::Complex(children) => children.to_vec(),
            Components::Base { private, shared } => {
                self.base.push((assembly.index, private.to_vec(), shared.to_vec()));
                Vec::new()
            }
        };
        self.assemblies.push((assembly.index, assembly.parent, children));
        assembly.hash(&mut self.digest);
        Ok(())
    }

    fn composite(&mut self, composite: &Composite<'_>) -> Result<(), Infallible> {
        self.order.push("composite");
        assert_eq!(composite.index as usize, self.composites.len());
        let users = (composite.used_in_private.to_vec(), composite.used_in_shared.to_vec());
        self.composites.push((composite.parts.clone(), users.0, users.1));
        composite.hash(&mut self.digest);
        Ok(())
    }

    fn document(&mut self, document: &Document<'_>) -> Result<(), Infallible> {
        self.order.push("document");
        self.text_bytes.push(document.text.len());
        document.hash(&mut self.digest);
        Ok(())
    }

    fn part(&mut self, part: &Part<'_>) -> Result<(), Infallible> {
        self.order.push("part");
        assert_eq!(part.index as usize, self.parts.len());
        self.parts.push((part.composite, part.to.clone(), part.from.to_vec()));
        part.hash(&mut self.digest);
        Ok(())
    }

    fn connection(&mut self, connection: &Connection) -> Result<(), Infallible> {
        self.order.push("connection");
        assert_eq!(connection.index as usize, self.connections.len());
        self.connections.push(*connection);
        connection.hash(&mut self.digest);
        Ok(())
    }
}

fn record(spec: Spec, seed: u64) -> Record {
    let mut record = Record::default();
    let Ok(()) = generate(spec, seed, &mut record);
    record
}

#[test]
fn objects_come_in_the_order_of_creation() {
    let spec = Spec { assembly_levels: 2, composites: 2, parts_per_composite: 2, ..Spec::TINY };
    let of_one = ["composite", "document", "part", "part"].into_iter().chain(["connection"; 6]);
    let expected: Vec<_> =
        ["module", "manual"].into_iter().chain(["assembly"; 4]).chain(of_one.clone()).chain(of_one).collect();
    assert_eq!(record(spec, 1).order, expected);
}

#[test]
fn the_small_database_has_its_42095_objects() {
    let small = record(Spec::SMALL, 1);
    assert_eq!(small.order.len(), 42_095);
    assert_eq!((small.parts.len(), small.connections.len()), (10_000, 30_000));
    assert_eq!((small.assemblies.len(), small.base.len()), (1_093, 729));
    assert_eq!(small.text_bytes[0], 102_400);
    assert!(small.text_bytes[1..].iter().all(|&bytes| bytes == 2_000));
}

#[test]
fn a_seed_names_one_database() {
    let digest = |seed| record(Spec::TINY, seed).digest.finish();
    assert_eq!(digest(7), digest(7));
    assert_ne!(digest(7), digest(8));
}

#[test]
fn every_assembly_but_the_root_is_the_child_of_its_parent() {
    let tiny = record(Spec::TINY, 1);
    for (index, parent, _) in &tiny.assemblies {
        match parent {
            Some(parent) => assert!(tiny.assemblies[*parent as usize].2.contains(index)),
            None => assert_eq!(*index, 0),
        }
    }
    assert_eq!(tiny.assemblies.iter().map(|(_, _, children)| children.len()).sum::<usize>(), 12);
}

#[test]
fn a_composite_knows_every_reference_to_it() {
    let tiny = record(Spec::TINY, 1);
    let (mut private, mut shared) = (0, 0);
    for (index, (_, in_private, in_shared)) in (0..).zip(&tiny.composites) {
        let references = |pick: fn(&Base) -> &[u32]| -> Vec<u32> {
            tiny.base
                .iter()
                .flat_map(|base| vec![base.0; pick(base).iter().filter(|&&c| c == index).count()])
                .collect()
        };
        assert_eq!(*in_private, references(|base| &base.1));
        assert_eq!(*in_shared, references(|base| &base.2));
        private += in_private.len();
        shared += in_shared.len();
    }
    assert_eq!((private, shared), (27, 27));
}

#[test]
fn connections_stay_inside_and_the_first_ones_make_a_ring() {
    let tiny = record(Spec::TINY, 1);
    for (index, (composite, to, from)) in (0..).zip(&tiny.parts) {
        let inside = &tiny.composites[*composite as usize].0;
        assert!(inside.contains(&index));
        for connection in &tiny.connections[to.start as usize..to.end as usize] {
            assert_eq!(connection.from, index);
            assert!(inside.contains(&connection.to));
        }
        let next = if index + 1 == inside.end { inside.start } else { index + 1 };
        assert_eq!(tiny.connections[to.start as usize].to, next);
        let leading: Vec<u32> = tiny.connections.iter().filter(|c| c.to == index).map(|c| c.index).collect();
        assert_eq!(*from, leading);
    }
}

#[test]
fn an_error_of_the_sink_ends_the_generation() {
    struct Full(u32);
    impl Sink for Full {
        type Error = &'static str;
        fn module(&mut self, _: &Module) -> Result<(), &'static str> {
            Ok(())
        }
        fn manual(&mut self, _: &Manual<'_>) -> Result<(), &'static str> {
            Ok(())
        }
        fn assembly(&mut self, _: &Assembly<'_>) -> Result<(), &'static str> {
            self.0 += 1;
            if self.0 == 3 { Err("full") } else { Ok(()) }
        }
        fn composite(&mut self, _: &Composite<'_>) -> Result<(), &'static str> {
            unreachable!("generation went on")
        }
        fn document(&mut self, _: &Document<'_>) -> Result<(), &'static str> {
            unreachable!("generation went on")
        }
        fn part(&mut self, _: &Part<'_>) -> Result<(), &'static str> {
            unreachable!("generation went on")
        }
        fn connection(&mut self, _: &Connection) -> Result<(), &'static str> {
            unreachable!("generation went on")
        }
    }
    let mut full = Full(0);
    assert_eq!(generate(Spec::TINY, 1, &mut full), Err("full"));
    assert_eq!(full.0, 3);
}
