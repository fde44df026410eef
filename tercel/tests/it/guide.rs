//! docs/guide.md is true: its snippets are parts of a program that is compiled and run here.

#[path = "../../examples/guide.rs"]
mod program;

const GUIDE: &str = include_str!("../../../docs/guide.md");
const PROGRAM: &str = include_str!("../../examples/guide.rs");

/// The lines without what surrounds a snippet in one of the two: indentation and empty lines.
fn lines(text: &str) -> Vec<&str> {
    text.lines().map(str::trim).filter(|line| !line.is_empty()).collect()
}

#[test]
fn every_snippet_of_the_guide_is_part_of_its_program() {
    let program = lines(PROGRAM);
    let snippets: Vec<&str> =
        GUIDE.split("```rust\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    assert!(snippets.len() > 5, "{}", snippets.len());
    // Paragraphs of a snippet may stand apart in the program.
    for paragraph in snippets.into_iter().flat_map(|snippet| snippet.split("\n\n")) {
        let wanted = lines(paragraph);
        let found = program.windows(wanted.len()).any(|part| part == wanted);
        assert!(found, "examples/guide.rs does not have, line for line:\n{paragraph}");
    }
}

#[test]
fn the_program_of_the_guide_runs() {
    program::main().unwrap();
}
