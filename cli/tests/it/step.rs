//! Models of STEP files: imported, asked, and left out where they cannot be read.

use std::fs;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::common::{Serving, err, in_one_line, out, tercel, until};

/// A directory with the sample imported, and its path as text.
fn sample() -> (tempfile::TempDir, String) {
    let dir = tempfile::tempdir().unwrap();
    let space = dir.path().join("models").display().to_string();
    let said = in_one_line(&out(&tercel(&["import", "step", "--sample", "--data", &space])));
    assert!(
        said.starts_with("imported 387 instances") && said.contains("of 1 model from the bundled sample"),
        "{said}"
    );
    (dir, space)
}

fn query(space: &str, words: &[&str]) -> String {
    out(&tercel(&[&["query", "step"], words, &["--data", space]].concat()))
}

fn answer(space: &str, words: &[&str]) -> Value {
    serde_json::from_str(&query(space, &[words, &["--json"]].concat())).unwrap()
}

fn count(answer: &Value, entity: &str) -> u64 {
    let entities = answer["entities"].as_array().unwrap();
    entities.iter().find(|of| of["entity"] == entity).map_or(0, |of| of["instances"].as_u64().unwrap())
}

#[test]
fn sample_is_imported_and_asked() {
    let (_dir, space) = sample();
    let parts = query(&space, &["parts"]);
    let lines: Vec<&str> = parts.lines().collect();
    assert!(lines[0].starts_with("CHIP-8  #"), "{parts}");
    assert!(lines[1].starts_with("  1 x BODY  #") && lines[2].starts_with("  8 x LEAD-1  #"), "{parts}");
    assert_eq!(answer(&space, &["parts"])[2]["total"], 8);
    let closure = answer(&space, &["closure", "CHIP-8"]);
    assert_eq!((count(&closure, "ADVANCED_FACE"), count(&closure, "PRODUCT")), (12, 3));
    assert!(query(&space, &["closure", "BODY"]).contains("6 ADVANCED_FACE\n"));
    assert_eq!(query(&space, &["box", "BODY"]), "from (-3, -2, 0.1) to (3, 2, 1.5), 8 points\n");
    assert_eq!(answer(&space, &["box", "BODY"])["as_placed"], true);
    assert_eq!(answer(&space, &["box", "CHIP-8"])["as_placed"], false);
    assert_eq!(answer(&space, &["box", "BODY", "--model", "sample.step"])["max"][2], 1.5);
    assert_eq!(answer(&space, &["box", "#1"])["min"], Value::Null);
    let unused = answer(&space, &["unused"]);
    assert_eq!(count(&unused, "CONTEXT_DEPENDENT_SHAPE_REPRESENTATION"), 9);
    assert_eq!(count(&unused, "CARTESIAN_POINT"), 0);
    let shown = query(&space, &["show", "#5"]);
    assert_eq!(shown, "#5=(LENGTH_UNIT()NAMED_UNIT(*)SI_UNIT(.MILLI.,.METRE.));\n");
    assert_eq!(answer(&space, &["models"])[0]["model"], "sample.step");
    out(&tercel(&["check", "--data", &space]));
}

#[test]
fn missing_names_are_told_with_those_there() {
    let (dir, space) = sample();
    let said = |words: &[&str]| {
        in_one_line(&err(&tercel(&[&["query", "step"], words, &["--data", &space]].concat())))
    };
    assert!(
        said(&["box", "LID"]).contains("no product `LID` next: it has CHIP-8, BODY, LEAD-1"),
        "{}",
        said(&["box", "LID"])
    );
    assert!(said(&["show", "#99999"]).contains("the model has no instance #99999"));
    assert!(said(&["parts", "--model", "x"]).contains("name one with --model: sample.step"));
    let empty = dir.path().join("other").display().to_string();
    out(&tercel(&["import", "debian", "--sample", "--data", &empty]));
    let none = err(&tercel(&["query", "step", "models", "--data", &empty]));
    assert!(none.contains("no model was imported"), "{none}");
}

#[test]
fn unreadable_files_are_left_out_or_refuse_all() {
    let dir = tempfile::tempdir().unwrap();
    let models = dir.path().join("in");
    fs::create_dir(&models).unwrap();
    let file = |instances: &str| {
        format!("ISO-10303-21;\nHEADER;\nENDSEC;\nDATA;\n{instances}\nENDSEC;\nEND-ISO-10303-21;\n")
    };
    fs::write(models.join("good.step"), file("#1=PRODUCT('\\X\\1B[1m','','',());")).unwrap();
    fs::write(models.join("odd.step"), file("#1=A();\n#2=A(#3);")).unwrap();
    fs::write(models.join("other.stp"), "solid cube").unwrap();
    let (models, space) =
        (models.display().to_string(), dir.path().join("above/space").display().to_string());
    let strict = in_one_line(&err(&tercel(&["import", "step", &models, "--strict", "--data", &space])));
    assert!(strict.contains("odd.step: line 6: #2 refers to #3"), "{strict}");
    assert!(!dir.path().join("above").exists(), "a failed import leaves no directory behind");
    let alone = format!("{models}/other.stp");
    assert!(err(&tercel(&["import", "step", &alone, "--data", &space])).contains("other.stp: line 1: "));
    assert!(!dir.path().join("above").exists());
    let imported = tercel(&["import", "step", &models, "--json", "--data", &space]);
    let told = String::from_utf8(imported.stderr.clone()).unwrap();
    assert!(told.contains("odd.step: line 6: ") && told.contains("the file is left out"), "{told}");
    let imported: Value = serde_json::from_str(&out(&imported)).unwrap();
    assert_eq!((imported["models"].as_u64(), imported["failed"].as_array().unwrap().len()), (Some(1), 2));
    let parts = query(&space, &["parts"]) + &query(&space, &["models"]);
    assert!(!parts.contains(|c: char| c.is_control() && c != '\n'), "{parts:?}");
}

#[test]
fn interrupted_import_shows_no_model() {
    let dir = tempfile::tempdir().unwrap();
    let models = dir.path().join("in");
    fs::create_dir(&models).unwrap();
    let points: String = (1..=40_000).map(|n| format!("#{n}=CARTESIAN_POINT('',({n}.,0.,0.));\n")).collect();
    let text = format!("ISO-10303-21;HEADER;ENDSEC;DATA;{points}ENDSEC;END-ISO-10303-21;");
    (0..50).for_each(|n| fs::write(models.join(format!("{n}.step")), &text).unwrap());
    let space = dir.path().join("space").display().to_string();
    let serving = Serving::start(&space);
    let mut import = Command::new(env!("CARGO_BIN_EXE_tercel"));
    import.args(["import", "step", &models.display().to_string(), "--server", &serving.1]);
    let import = import.stderr(Stdio::piped()).spawn().unwrap();
    // Instances of the first model are committed, and there are fifty.
    until(|| {
        let status: Value =
            serde_json::from_str(&out(&tercel(&["stat", "--json", "--server", &serving.1]))).unwrap();
        (status["commits"].as_u64()? >= 2).then_some(())
    });
    out(&Command::new("kill").args(["-INT", &import.id().to_string()]).output().unwrap());
    let ended = import.wait_with_output().unwrap();
    let said = String::from_utf8(ended.stderr).unwrap();
    assert_eq!(ended.status.code(), Some(130), "{said}");
    assert!(said.contains("nothing was changed, the models that were there before are kept"), "{said}");
    assert!(
        err(&tercel(&["query", "step", "models", "--server", &serving.1])).contains("no model was imported")
    );
    out(&tercel(&["import", "step", "--sample", "--server", &serving.1]));
    assert!(out(&tercel(&["query", "step", "models", "--server", &serving.1])).starts_with("sample.step "));
}
