//! Runs one target of `hanare-fuzz` under libFuzzer. The variable `HANARE_FUZZ_TARGET` names the target. `scripts/fuzz`
//! builds and runs this program.
#![no_main]

use std::sync::OnceLock;

use hanare_fuzz::Target;

static TARGET: OnceLock<&Target> = OnceLock::new();

libfuzzer_sys::fuzz_target!(
    init: {
        let name = std::env::var("HANARE_FUZZ_TARGET").unwrap_or_default();
        assert!(TARGET.set(hanare_fuzz::find(&name)).is_ok(), "the target is chosen once");
    },
    |data: &[u8]| {
        if let Some(target) = TARGET.get() {
            (target.run)(data);
        }
    }
);
