//! What must not compile: two owners of the same bytes.

#[test]
fn two_owners_of_the_same_bytes_do_not_compile() {
    trybuild::TestCases::new().compile_fail("tests/ui/*.rs");
}
