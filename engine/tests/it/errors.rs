//! The compiler's messages for a program that takes a borrowed value out of a transaction. The guide and
//! `Client::run` quote them.

#[test]
fn a_result_that_borrows_from_its_transaction_is_named_by_its_type() {
    trybuild::TestCases::new().compile_fail("tests/ui/*.rs");
}
