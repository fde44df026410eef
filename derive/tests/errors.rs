//! The compiler's errors for a struct that cannot be a class: which field, what is wrong, what to do.

#[test]
fn errors_point_at_what_must_change() {
    trybuild::TestCases::new().compile_fail("tests/ui/*.rs");
}
