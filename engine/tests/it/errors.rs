//! What the compiler says of a program that takes out of a transaction what belongs to it. The guide and `Client::run` quote it.

#[test]
fn a_result_that_borrows_from_its_transaction_is_named_by_its_type() {
    trybuild::TestCases::new().compile_fail("tests/ui/*.rs");
}
