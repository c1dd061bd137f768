//! Checks that `bowline.h` matches what this crate exports.

use std::path::Path;

#[test]
fn the_header_is_up_to_date() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(root.join("cbindgen.toml")).unwrap();
    let made = cbindgen::Builder::new().with_crate(root).with_config(config).generate().unwrap();
    let mut text = Vec::new();
    made.write(&mut text);
    let text = String::from_utf8(text).unwrap();
    let path = root.join("bowline.h");
    if std::env::var_os("BOWLINE_BLESS").is_some() {
        std::fs::write(&path, text).unwrap();
        return;
    }
    let there = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(there == text, "bowline.h is not up to date: run this test with BOWLINE_BLESS=1");
}
