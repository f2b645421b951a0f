//! Scripts in `testdata/meta`.

use crate::testdata::{describe, run_script};
use crate::text::Limits;

#[test]
fn commands_and_errors() {
    run_script("meta", |input| describe(input, input.len() + 1, &Limits::default()));
}
