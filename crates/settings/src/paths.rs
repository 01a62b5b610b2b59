//! Makes the paths in settings independent of the process' current directory.

use std::path::{Path, PathBuf};

use hanare_wire::Endpoint;

use crate::Settings;

impl Settings {
    /// Makes the paths of the key file and of servers' sockets absolute. A program may change its directory before it has
    /// far memory, and it uses these paths again after a fork, an exec and the loss of a server.
    pub fn resolve_paths(&mut self) {
        self.key_file = self.key_file.as_deref().map(resolved);
        for server in &mut self.servers {
            if let Endpoint::Unix(path) = &mut server.endpoint {
                *path = resolved(path);
            }
        }
    }
}

/// Returns the absolute path. If the current directory is unknown, returns the path as it is, and its use then fails.
fn resolved(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Local;

    #[test]
    fn relative_paths_become_absolute_and_others_stay() {
        let mut settings = Settings::new(Local::Percent(50));
        settings.key_file = Some("key".into());
        settings.servers =
            ["./a.sock=1G", "unix:b.sock", "/tmp/c.sock", "host:1"].map(|text| text.parse().expect("a server")).into();
        settings.resolve_paths();
        let here = std::env::current_dir().expect("a directory");
        assert_eq!(settings.key_file, Some(here.join("key")));
        let endpoints: Vec<Endpoint> = settings.servers.iter().map(|server| server.endpoint.clone()).collect();
        let at = |path: PathBuf| Endpoint::Unix(path);
        let host: Endpoint = "host:1".parse().expect("an address");
        assert_eq!(endpoints, [at(here.join("a.sock")), at(here.join("b.sock")), at("/tmp/c.sock".into()), host]);
        let once = settings.servers.clone();
        settings.resolve_paths();
        assert_eq!(settings.servers, once);
    }
}
