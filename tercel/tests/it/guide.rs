//! docs/guide.md and README.md are true: their snippets are parts of programs that are compiled, and the
//! guide's is run here.

#[path = "../../examples/guide.rs"]
mod program;

const GUIDE: &str = include_str!("../../../docs/guide.md");
const PROGRAM: &str = include_str!("../../examples/guide.rs");
const README: &str = include_str!("../../../README.md");
const README_PROGRAM: &str = include_str!("../../examples/readme.rs");

/// The lines without what surrounds a snippet in one of the two: indentation and empty lines.
fn lines(text: &str) -> Vec<&str> {
    text.lines().map(str::trim).filter(|line| !line.is_empty()).collect()
}

/// The snippets of a page, each of which must be in the program.
fn snippets<'p>(page: &'p str, program: &str) -> Vec<&'p str> {
    let program = lines(program);
    let snippets: Vec<&str> =
        page.split("```rust\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    // Paragraphs of a snippet may stand apart in the program.
    for paragraph in snippets.iter().flat_map(|snippet| snippet.split("\n\n")) {
        let wanted = lines(paragraph);
        let found = program.windows(wanted.len()).any(|part| part == wanted);
        assert!(found, "the program does not have, line for line:\n{paragraph}");
    }
    snippets
}

#[test]
fn every_snippet_of_the_guide_is_part_of_its_program() {
    assert!(snippets(GUIDE, PROGRAM).len() > 5);
}

#[test]
fn the_snippets_of_the_readme_are_part_of_its_program() {
    assert_eq!(snippets(README, README_PROGRAM).len(), 2);
}

#[test]
fn the_program_of_the_guide_runs() {
    program::main().unwrap();
}
