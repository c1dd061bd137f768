//! The custom scheme example does what it says.

#[allow(dead_code, reason = "the example's `main` is not called here")]
#[path = "../examples/custom_scheme.rs"]
mod example;

#[test]
fn a_scheme_of_ones_own_delivers() {
    let moved = example::run(&["twice"], ["127.79.1.1", "127.79.1.2"]).unwrap();
    assert_eq!(moved.len(), 1);
    assert!(moved.iter().all(|(_, right)| *right), "{moved:?}");
}
