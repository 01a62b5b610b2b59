//! The names that `--policy` and `--prefetch` accept. `--policy help` prints them.

use std::io::Write;

use hanare_settings::{Info, ValueError, names, parse_name};

/// The name that asks for a list of names.
pub(crate) const HELP: &str = "help";

/// Returns the help of a flag that takes a name: the valid names and the default.
pub(crate) fn flag_help<T: ?Sized>(what: &str, all: &[&Info<T>], default: &str) -> String {
    format!("{what}: {}; with :PARAM=VALUE,... as '{HELP}' tells. Default: {default}", names(all))
}

/// Returns the parser of a flag that takes a name. For [`HELP`], the parser prints the list of names and ends the
/// command. So `--policy help` works without the flags that clap requires.
pub(crate) fn parser<T: ?Sized + 'static>(
    all: &'static [&'static Info<T>],
    default: &'static str,
) -> impl Fn(&str) -> Result<String, ValueError> + Clone
where
    Info<T>: Sync,
{
    move |text| {
        if text == HELP {
            print(all, default);
            std::process::exit(0);
        }
        parse_name(text)
    }
}

/// Prints all names with their parameters and sources. A reader that closes the pipe early is no failure.
pub(crate) fn print<T: ?Sized>(all: &[&Info<T>], default: &str) {
    let mut text = String::new();
    for info in all {
        let mark = if info.name == default { " (the default)" } else { "" };
        text += &format!("{}{mark}\n    {}\n", info.name, info.summary);
        if !info.source.is_empty() {
            text += &format!("    source: {}\n", info.source);
        }
        for param in info.params {
            let bounds = if param.max == u64::MAX {
                format!("from {}", param.min)
            } else {
                format!("{} to {}", param.min, param.max)
            };
            text += &format!("    {}={}  {} ({bounds})\n", param.name, param.default, param.help);
        }
    }
    let _ = std::io::stdout().write_all(text.as_bytes());
}
