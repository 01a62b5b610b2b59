//! Explains a memory server's name that is no host but a socket in this directory.

use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use hanare_wire::{DEFAULT_PORT, Endpoint};

/// Returns advice if the endpoint's host name is also the name of a socket in this directory. Empty in all other cases.
/// `serve --unix` takes such a name, but where a server is named, a socket's path must have a '/'.
pub(crate) fn advice(endpoint: &Endpoint) -> String {
    let Endpoint::Tcp(address) = endpoint else { return String::new() };
    let Some(name) = address.strip_suffix(&format!(":{DEFAULT_PORT}")) else { return String::new() };
    let is_socket = Path::new(name).metadata().is_ok_and(|meta| meta.file_type().is_socket());
    if is_socket { format!(", or name the socket {name} in this directory by ./{name}") } else { String::new() }
}
