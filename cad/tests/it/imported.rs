//! Files become objects, and the objects are what the files say.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use tercel::Client;
use tercel_cad::import::{Choice, Imported, import};
use tercel_cad::product::{Links, bill, find, parts};
use tercel_cad::query::{
    Bounds, Tally, Walk, by_id, entity_names, model, models, of_entity, points_of, text, unused,
};
use tercel_cad::sample::chip;
use tercel_cad::source::{File, Source};
use tercel_step::{Decoder, Step, write_file, write_instance};
use tercel_term::Term;

struct Space {
    _dir: tempfile::TempDir,
    client: Client,
}

impl Space {
    fn new() -> Space {
        let dir = tempfile::tempdir().unwrap();
        let client = tercel::embedded(dir.path().join("space")).unwrap();
        Space { _dir: dir, client }
    }

    fn take(&self, source: &Source) -> Result<Imported, String> {
        self.take_by(source, &Choice::default())
    }

    fn take_by(&self, source: &Source, choice: &Choice) -> Result<Imported, String> {
        import(&self.client, source, choice, &Term::new()).map_err(|failure| failure.what)
    }

    fn names(&self) -> Vec<String> {
        models(&self.client).map_or(Vec::new(), |all| all.into_iter().map(|(name, _)| name).collect())
    }
}

fn source(files: &[(&str, String)]) -> Source {
    let files = files.iter().map(|(name, text)| File::written(*name, text.clone())).collect();
    Source { name: "written".into(), files, is_directory: true }
}

fn small(instances: &str) -> String {
    write_file("small", "X", instances)
}

/// The instances of a text as they are written.
fn instances(text: &str) -> BTreeMap<u64, String> {
    let mut decoder = Decoder::default();
    decoder.feed(text.as_bytes());
    decoder.end();
    let mut all = BTreeMap::new();
    loop {
        match decoder.step().unwrap() {
            Step::Instance(instance) => {
                let mut out = String::new();
                write_instance(instance.id, &instance.body, &mut out);
                all.insert(instance.id, out);
            }
            Step::End => return all,
            _ => {}
        }
    }
}

#[test]
fn instances_are_stored_as_the_file_has_them() {
    let odd = "#7=A('it''s',(#900,(#7)),LENGTH(-2.5),$,*,.T.,\"0AF\",-12);#900=(B(1.)C((2.,3.)));#30=D();";
    let shell: String = (1..=20_000).map(|n| format!("#{n}=P((1.,{n}.));")).collect();
    let all: String = (1..=20_000).map(|n| format!(",#{n}")).collect();
    let large = format!("{shell}#20001=SHELL(({}));", &all[1..]);
    let default = Choice::default();
    let in_parts = Choice { together_max: 60, ..default };
    for (text, choice) in [(small(odd), default), (chip("C", 4, 2), in_parts), (small(&large), default)] {
        let (space, expected) = (Space::new(), instances(&text));
        let imported = space.take_by(&source(&[("m", text)]), &choice).unwrap();
        assert_eq!(imported.instances, expected.len() as u64);
        let of = model(&space.client, None).unwrap();
        let check = |tx: &tercel::Tx<'_>| {
            let names = entity_names(tx, of)?;
            for (id, written) in &expected {
                let instance = by_id(tx, of, *id)?.unwrap();
                assert_eq!(text_of(tx, &names, instance)?, *written);
            }
            assert_eq!(by_id(tx, of, 1_000_000)?, None);
            Ok(())
        };
        space.client.run(check).unwrap();
        let counted: u64 = imported.entities.iter().map(|of| of.instances).sum();
        assert_eq!(counted, imported.instances);
    }
}

fn text_of(
    tx: &tercel::Tx<'_>,
    names: &[String],
    instance: tercel::Ref<tercel_cad::model::Instance>,
) -> Result<String, tercel::Error> {
    text(tx, names, instance)
}

#[test]
fn unreadable_file_costs_itself_alone() {
    let files = source(&[("a", small("#1=A();")), ("b", small("#1=A(#2);")), ("c", small("#1=A(;"))]);
    let space = Space::new();
    let imported = space.take(&files).unwrap();
    assert_eq!((imported.models, space.names()), (1, vec!["a".to_owned()]));
    assert!(imported.failed[0].starts_with("b: line 8: #1 refers to #2"), "{:?}", imported.failed);
    assert!(imported.failed[1].starts_with("c: line 8: "), "{:?}", imported.failed);
    let long = "x".repeat(300);
    let named = space.take(&source(&[("a", small("#1=A();")), (&long, small("#1=A();"))])).unwrap();
    assert!(named.failed[0].contains("its name: "), "{:?}", named.failed);
    let strict = Space::new();
    let said = strict.take_by(&files, &Choice { strict: true, ..Choice::default() }).unwrap_err();
    assert!(said.starts_with("b: line 8: ") && said.ends_with("nothing was changed"), "{said}");
    assert_eq!(strict.names(), Vec::<String>::new());
    let alone = Source { is_directory: false, ..source(&[("b", small("#1=A(#2);"))]) };
    assert!(space.take(&alone).is_err());
    assert_eq!(space.names(), ["a"]);
}

#[test]
fn model_replaces_the_one_of_its_name() {
    let space = Space::new();
    space.take(&source(&[("a", small("#1=A();")), ("b", small("#1=B();"))])).unwrap();
    let again = space.take(&source(&[("b", small("#5=C();#6=C();"))])).unwrap();
    assert_eq!((again.replaced, space.names()), (1, vec!["a".to_owned(), "b".into()]));
    let of = model(&space.client, Some("b")).unwrap();
    assert_eq!(space.client.run(|tx| Ok(of_entity(tx, of, "C")?.len())).unwrap(), 2);
    let failure = model(&space.client, None).unwrap_err();
    assert!(failure.next.unwrap().contains("a, b"));
    assert!(model(&space.client, Some("x")).is_err());
}

#[test]
fn files_are_found_by_their_ends() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("sub")).unwrap();
    for name in ["b.STEP", "sub/a.stp", "c.txt", "a.p21"] {
        fs::write(dir.path().join(name), small("#1=A();")).unwrap();
    }
    let found = Source::at(dir.path()).unwrap();
    let names: Vec<_> = found.files.iter().map(|file| file.model.clone()).collect();
    assert_eq!(names, ["a.p21", "b.STEP", "sub/a.stp"]);
    assert!(found.is_directory && found.bytes() > 0);
    let space = Space::new();
    assert_eq!(space.take(&found).unwrap().models, 3);
    let one = Source::at(&dir.path().join("c.txt")).unwrap();
    assert_eq!((one.files[0].model.as_str(), one.is_directory), ("c.txt", false));
    assert!(Source::at(Path::new("/nowhere/at/all")).is_err());
    fs::create_dir(dir.path().join("empty")).unwrap();
    assert!(Source::at(&dir.path().join("empty")).unwrap_err().what.contains("no STEP files"));
}

#[test]
fn closures_and_bounds_are_those_of_the_solid() {
    let space = Space::new();
    space.take(&source(&[("m", chip("C", 4, 2))])).unwrap();
    let of = model(&space.client, None).unwrap();
    let body = find(&space.client, of, "BODY").unwrap();
    let (reached, bounds) = space
        .client
        .run(|tx| {
            let (points, mut bounds, mut tally) = (points_of(tx, of)?, Bounds::default(), Tally::default());
            let links = Links::of(tx, of)?;
            links.walk(tx, body, |instance| {
                tally.add(instance);
                bounds.take(instance, points)
            })?;
            Ok((tally.named(&entity_names(tx, of)?), bounds))
        })
        .unwrap();
    let count = |name: &str| reached.iter().find(|of| of.entity == name).map_or(0, |of| of.instances);
    assert_eq!((count("ADVANCED_FACE"), count("EDGE_CURVE"), count("PRODUCT")), (6, 12, 1));
    // The origin of the part's axes is a point of it, too.
    assert_eq!((bounds.min, bounds.max, bounds.points), ([-3.0, -2.0, 0.0], [3.0, 2.0, 1.5], 9));
    let whole = find(&space.client, of, "C").unwrap();
    let solids = space.client.run(|tx| {
        let mut tally = Tally::default();
        Links::of(tx, of)?.walk(tx, whole, |instance| {
            tally.add(instance);
            Ok(())
        })?;
        Ok(tally.named(&entity_names(tx, of)?))
    });
    let solids = solids.unwrap();
    assert_eq!(solids.iter().find(|of| of.entity == "MANIFOLD_SOLID_BREP").unwrap().instances, 3);
}

#[test]
fn bills_count_the_uses_of_each_part() {
    let space = Space::new();
    space.take(&source(&[("m", chip("C", 5, 2))])).unwrap();
    let of = model(&space.client, None).unwrap();
    let parts = space.client.run(|tx| parts(tx, of)).unwrap();
    let top = parts.iter().position(|part| !part.is_used).unwrap();
    let lines = bill(&parts, top).unwrap();
    let told: Vec<_> =
        lines.iter().map(|line| (&*parts[line.part].product, line.depth, line.times)).collect();
    assert_eq!(told, [("C", 0, 1), ("BODY", 1, 1), ("LEAD-1", 1, 3), ("LEAD-2", 1, 2)]);
}

#[test]
fn instances_are_found_by_id_and_product() {
    let space = Space::new();
    space.take(&source(&[("m", small("#9=PRODUCT('a','b','',());#2=PRODUCT('b','c','',());"))])).unwrap();
    let of = model(&space.client, None).unwrap();
    let id = |what: &str| {
        let found = find(&space.client, of, what)?;
        Ok::<_, tercel_term::fail::Failure>(space.client.run(|tx| Ok(tx.get(found)?.id()))?)
    };
    assert_eq!((id("a").unwrap(), id("c").unwrap(), id("#2").unwrap()), (9, 2, 2));
    assert!(id("b").unwrap_err().next.unwrap().contains("'#9', '#2'"));
    assert!(id("x").unwrap_err().next.unwrap().contains("a, b"));
    assert!(id("#3").is_err() && id("#x").is_err());
}

#[test]
fn unreferred_instances_are_told_and_circles_end() {
    let deep: String = (1..500).map(|n| format!("#{n}=A(#{});", n + 1)).collect();
    let text = small(&format!("{deep}#500=A(#1);#501=B(#501,#3);#502=B();"));
    let space = Space::new();
    space.take(&source(&[("m", text)])).unwrap();
    let of = model(&space.client, None).unwrap();
    let (ids, visited) = space
        .client
        .run(|tx| {
            let ids = unused(tx, of)?.into_iter().map(|i| Ok(tx.get(i)?.id()));
            let mut walk = Walk::default();
            walk.from(tx, by_id(tx, of, 501)?.unwrap(), &mut |_| Ok(()))?;
            Ok((ids.collect::<Result<Vec<u64>, tercel::Error>>()?, walk.visited))
        })
        .unwrap();
    assert_eq!(ids, [501, 502]);
    assert_eq!((visited.instances, visited.references), (501, 502));
}
