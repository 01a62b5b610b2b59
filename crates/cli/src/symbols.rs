//! Names for addresses of code: the module that a process has there, and the function and line of its symbols.
//!
//! `maps` reads which modules a process has, while it lives. `names` reads the symbols later, in a thread of its own, so
//! that a big module cannot hold up the command. This module must not know what the addresses are for.

mod maps;
mod names;

pub(crate) use maps::Modules;
pub(crate) use names::{Name, Names};

use std::path::PathBuf;
use std::sync::Arc;

/// A place in a file of code.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Spot {
    pub(crate) module: Arc<Module>,
    /// Offset in the file.
    pub(crate) offset: u64,
}

/// A file of code, as it was when a process had mapped it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Module {
    /// The path as the process sees it, or a name in brackets if it is no file.
    pub(crate) path: PathBuf,
    inode: u64,
}

impl Module {
    /// Returns the name of the file without its folder.
    pub(crate) fn name(&self) -> String {
        self.path.file_name().unwrap_or(self.path.as_os_str()).to_string_lossy().into_owned()
    }
}
