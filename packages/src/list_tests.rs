use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::{Command, Output};

use tercel_machine::random::Random;

use super::*;

/// Packages with their versions and the names that they depend on, other than their own.
type Seen = BTreeMap<String, (String, BTreeSet<String>)>;

fn read_list(text: impl AsRef<[u8]>, choice: &Choice) -> Result<Graph, Failure> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("Packages");
    std::fs::write(&file, text).unwrap();
    read(&Source::File(file), choice, &Term::new())
}

fn of(architecture: &str) -> Choice {
    Choice { architecture: Some(architecture.into()), strict: false }
}

fn seen(graph: &Graph) -> Seen {
    let packages = graph.packages.iter().filter(|p| p.details.is_some());
    packages
        .map(|p| {
            let depends = p.depends.iter().map(|d| graph.packages[*d as usize].name.clone());
            let others = depends.filter(|name| *name != p.name).collect();
            (p.name.clone(), (p.version.clone(), others))
        })
        .collect()
}

fn names(graph: &Graph) -> Vec<&str> {
    graph.packages.iter().map(|p| &p.name[..]).collect()
}

#[test]
fn highest_version_wins_and_first_of_equals() {
    let list = "Package: a\nVersion: 1.10\nDepends: new\n\nPackage: a\nVersion: 1.9\nDepends: old\n\n\
        Package: b\nArchitecture: amd64\nVersion: 1\n\nPackage: b\nArchitecture: all\nVersion: 2\nDepends: first\n\n\
        Package: b\nArchitecture: amd64\nVersion: 0:2\nDepends: second\n\nPackage: a\nVersion: 1.10~rc1\nDepends: rc\n";
    let graph = read_list(list, &of("amd64")).unwrap();
    assert_eq!(names(&graph), ["a", "new", "b", "first"]);
    assert_eq!((graph.left_out.older, graph.edges, graph.counts()), (4, 2, (2, 2)));
    assert_eq!(graph.left_out.words(), "; left out: 4 older versions");
}

#[test]
fn other_architectures_are_left_out() {
    let list = "Package: a\nArchitecture: riscv\nDepends: x\n\nPackage: a\nArchitecture: vax\nVersion: 9\nDepends: y\n\n\
        Package: b\nArchitecture: all\n\nPackage: c\nArchitecture: vax\n\nPackage: d\n";
    let taken = |choice: &Choice| {
        let graph = read_list(list, choice).unwrap();
        (names(&graph).join(" "), graph.left_out.foreign, graph.left_out.architecture)
    };
    assert_eq!(taken(&of("riscv")), ("a x b d".into(), 2, "riscv".into()));
    assert_eq!(taken(&of("all")), ("b d".into(), 3, "all".into()));
    // Neither is this machine's, so the one with more stanzas.
    assert_eq!(taken(&Choice::default()), ("a y b c d".into(), 1, "vax".into()));
    let native = format!("{list}\nPackage: e\nArchitecture: {}\n", native());
    assert_eq!(names(&read_list(native, &Choice::default()).unwrap()), ["b", "d", "e"]);
    let Err(refused) = read_list("Package: a\nArchitecture: vax\n", &of("riscv")) else {
        panic!("it was read")
    };
    assert!(refused.what.contains("riscv") && refused.next.unwrap().contains("vax"));
}

#[test]
fn unread_stanza_is_counted_or_refused() {
    let list = "Package: a\n\nPackage: b\nnonsense\n\nPackage: c\n";
    let graph = read_list(list, &Choice::default()).unwrap();
    assert_eq!((names(&graph), graph.left_out.unread), (vec!["a", "c"], 1));
    let strict = Choice { strict: true, ..Choice::default() };
    let Err(refused) = read_list(list, &strict) else { panic!("it was read") };
    assert!(refused.what.contains("line 4") && refused.next.unwrap().contains("without --strict"));
    let Err(refused) = read_list("<html>\n", &Choice::default()) else { panic!("it was read") };
    assert!(refused.what.contains("no packages in it"), "{}", refused.what);
}

#[test]
fn mangled_stanzas_never_cost_sound_ones() {
    let mut random = Random::new(1);
    for round in 0..200 {
        let mut sound = BTreeSet::new();
        let mut list = Vec::new();
        for n in 0..20 {
            let mut stanza =
                format!("Package: p{n}\nVersion: 1\nDepends: a, b (>= 1) | c\nDescription: d\n x\n")
                    .into_bytes();
            if random.below(3) == 0 {
                for _ in 0..1 + random.below(8) {
                    let at = random.below(stanza.len() as u64) as usize;
                    match random.below(3) {
                        0 => stanza[at] = random.below(256) as u8,
                        1 => drop(stanza.remove(at)),
                        _ => stanza.insert(at, b"\n \t:#,|(\0\x1b\xff"[random.below(11) as usize]),
                    }
                }
            } else {
                sound.insert(format!("p{n}"));
            }
            list.extend(stanza);
            list.extend(b"\n\n");
        }
        let Ok(graph) = read_list(list, &Choice::default()) else { panic!("round {round}") };
        let seen = seen(&graph);
        for name in sound {
            assert!(seen.contains_key(&name), "round {round}: {name} is lost");
        }
        assert!(
            names(&graph).iter().all(|name| !name.contains(|c: char| c.is_control() && c != '\t')),
            "round {round}"
        );
    }
}

/// Asks apt what it sees in a list, or says why it cannot be asked.
fn seen_by_apt(list: &[u8]) -> Result<Seen, String> {
    let root = tempfile::tempdir().unwrap();
    let place = |name: &str| root.path().join(name);
    for folder in [
        "etc/apt/apt.conf.d",
        "etc/apt/preferences.d",
        "etc/apt/sources.list.d",
        "etc/apt/trusted.gpg.d",
        "var/lib/apt/lists/partial",
        "var/cache/apt/archives/partial",
        "var/lib/dpkg",
        "lists",
    ] {
        std::fs::create_dir_all(place(folder)).unwrap();
    }
    std::fs::write(place("var/lib/dpkg/status"), "").unwrap();
    std::fs::write(place("lists/Packages"), list).unwrap();
    let source = format!("deb [trusted=yes] copy:{} ./\n", place("lists").display());
    std::fs::write(place("etc/apt/sources.list"), source).unwrap();
    apt(root.path(), "apt-get", &["-q", "update"])?;
    Ok(parse_dump(&apt(root.path(), "apt-cache", &["dump"])?))
}

fn apt(root: &Path, program: &str, args: &[&str]) -> Result<Vec<u8>, String> {
    let mut command = Command::new(program);
    let option = |name: &str, value: &str| ["-o".to_owned(), format!("{name}={value}")];
    command.args(option("Dir", root.to_str().unwrap()));
    command.args(option("Dir::State::status", root.join("var/lib/dpkg/status").to_str().unwrap()));
    for (name, value) in [
        ("APT::Sandbox::User", ""),
        ("APT::Architecture", "amd64"),
        ("APT::Architectures", "amd64"),
        ("Acquire::Languages", "none"),
    ] {
        command.args(option(name, value));
    }
    let Output { status, stdout, stderr } =
        command.args(args).output().map_err(|e| format!("{program}: {e}"))?;
    if status.success() { Ok(stdout) } else { Err(String::from_utf8_lossy(&stderr).into()) }
}

/// The highest version of each package in what `apt-cache dump` prints, which comes first.
fn parse_dump(dump: &[u8]) -> Seen {
    let bare = |name: &str| match name.rsplit_once(':') {
        Some((bare, "any" | "none" | "amd64" | "i386")) => bare.to_owned(),
        _ => name.to_owned(),
    };
    let mut seen = Seen::new();
    // The package, and how many of its versions were seen.
    let mut at: Option<(String, u32)> = None;
    for line in String::from_utf8_lossy(dump).split('\n') {
        match (&mut at, line.split_once(": ").unwrap_or((line, ""))) {
            (at, ("Package", name)) => *at = (!name.ends_with(":i386")).then(|| (bare(name), 0)),
            (at, ("File", _)) => *at = None,
            (Some((name, versions)), (" Version", version)) => {
                *versions += 1;
                if *versions == 1 {
                    seen.insert(name.clone(), (version.to_owned(), BTreeSet::new()));
                }
            }
            (Some((name, 1)), ("  Depends" | "  PreDepends", on)) => {
                let on = bare(on.rsplit_once(' ').map_or(on, |(on, _)| on));
                if on != *name {
                    seen.get_mut(name).unwrap().1.insert(on);
                }
            }
            _ => {}
        }
    }
    seen
}

/// Stanzas that are odd in every way that apt takes.
fn odd_list(random: &mut Random) -> Vec<u8> {
    let mut list = Vec::new();
    let mut one_of = |pieces: &[&'static [u8]]| pieces[random.below(pieces.len() as u64) as usize];
    for n in 0..600 {
        let name = format!("p{}", n * 7 % 150).into_bytes();
        let other = format!("p{}", n * 11 % 170).into_bytes();
        let pieces: [&[u8]; 14] = [
            one_of(&[b"", b" ignored\n", b" \n", b"\t\r\n"]),
            one_of(&[
                b"Package: ",
                b"package:",
                b"PACKAGE : \t",
                b"Package: spare\nPackage:\n ",
                b"Package: X",
            ]),
            &name,
            one_of(&[b"\n", b"\r\n", b" \t\n"]),
            one_of(&[
                b"",
                b"Size: 35K\n",
                b"Size: 6.5\n",
                b"Size:\n",
                b"Installed-Size: many\n",
                b"X: \xff\xfe\x1b[1m\n",
                b":\n",
            ]),
            one_of(&[
                b"Version: 1\n",
                b"Version: 1.0-1\n",
                b"Version:2~rc\n",
                b"Version: 2\n",
                b"Version: 0:2\n",
                b"Version: 1:0\n",
                b"Version: 1.0+\xe4\n",
                b"Version: 9\nVersion: 1.10\n",
                b"Version: 1.9\n",
            ]),
            one_of(&[
                b"Maintainer: J\xf6rg\n",
                b"Description: x\n y\n \n z\n\t\n",
                b"Tag: a::b,\n c::d\n",
                b"",
            ]),
            one_of(&[
                b"Architecture: amd64\n",
                b"Architecture: amd64\n",
                b"Architecture: all\n",
                b"Architecture: i386\n",
            ]),
            one_of(&[b"", b"Depends: gone\n", b"Depends:\n"]),
            one_of(&[
                b"Depends: ",
                b"Depends :",
                b"depends:\n ",
                b"Pre-Depends: b,\n \n ",
                b"Depends: ${misc:Depends}, ",
            ]),
            &other,
            one_of(&[
                b"",
                b":any",
                b" (>= 1)",
                b"(<<2)",
                b" (= 2,3)",
                b" | c:any",
                b",",
                b" (1) ,\n\tF_x\xff",
                b"\n , q",
            ]),
            one_of(&[b"\n", b" \n", b"\r\n", b"\n \t\n"]),
            one_of(&[b"\n", b"\n\n\n", b"\r\n"]),
        ];
        list.extend(pieces.concat());
    }
    list
}

#[test]
fn odd_lists_are_read_as_apt_reads_them() {
    let mut random = Random::new(1);
    for round in 0..3 {
        let list = odd_list(&mut random);
        let by_apt = match seen_by_apt(&list) {
            Ok(seen) => seen,
            Err(e) if e.contains("No such file") => return eprintln!("left out: apt is not here ({e})"),
            Err(e) => panic!("apt refuses the list: {e}"),
        };
        let Ok(graph) = read_list(&list, &of("amd64")) else { panic!("it was not read") };
        let ours = seen(&graph);
        assert!(ours.len() > 100, "{} packages", ours.len());
        for name in ours.keys().chain(by_apt.keys()) {
            assert_eq!(ours.get(name), by_apt.get(name), "round {round}: {name}, ours and apt's");
        }
        assert_eq!(graph.left_out.unread, 0);
    }
}
