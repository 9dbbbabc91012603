//! What must not compile at the level of the facade: memory in flight, and completions outlived.

#[test]
fn misuse_does_not_compile() {
    let cases = trybuild::TestCases::new();
    cases.compile_fail("tests/ui/*.rs");
}
