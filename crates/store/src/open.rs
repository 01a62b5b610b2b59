//! Opening the store of one of several processes that have the pages of a space among them.

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use hanare_paging::limits::RUN_BYTES_MAX;
use hanare_settings::ServerSpec;
use hanare_sys::map::MapError;
use hanare_wire::{Attachment, Key, KeyError, LinkError, Session, SessionOptions};

use crate::private::{self, PrivateError};
use crate::{Kind, Opened, Remote, Sender, Shape, Slots, SlotsError};

/// Where pages go.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Target {
    /// A private server that the process starts for itself.
    Own,
    /// A private server of this host, by its socket.
    Private(PathBuf),
    /// Memory servers.
    Servers {
        /// Their addresses, and the most to use of each for all processes.
        servers: Vec<ServerSpec>,
        /// File with the key that they share with this process.
        key: Option<PathBuf>,
        /// How long a silent one is waited for, in seconds.
        timeout_s: u32,
    },
}

/// Why a store cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// There is no private server.
    #[error("{0}; put hanare on the PATH, or name servers in HANARE_SERVERS")]
    Start(#[from] PrivateError),
    /// Its slots cannot be used.
    #[error(transparent)]
    Slots(#[from] SlotsError),
    /// The key is no use.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// A server cannot be reached, or refuses.
    #[error("{server}: {source}")]
    Server {
        /// Its name.
        server: String,
        /// What went wrong.
        source: LinkError,
    },
    /// There is no memory.
    #[error("cannot have room for pages that arrive: {0}; raise the limit on address space")]
    Map(#[from] MapError),
}

impl Kind {
    /// Opens the store of one of `processes` that have the pages of a space among them, with the senders to be run. Each
    /// slot is placed by itself, so that it takes no room for pages of other processes; bounds of servers are divided.
    /// `bell` is rung when few free slots are left, for who gives the store its turns of upkeep.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open(
        target: &Target,
        shape: Shape,
        processes: u16,
        bell: &'static AtomicU32,
    ) -> Result<(Self, Vec<Sender>), OpenError> {
        let slots = |socket: &Path| {
            let link = Attachment::open(socket, shape.slot_bytes as u32).map_err(SlotsError::Link)?;
            let slots = Slots::new(link, shape.units, shape.unit_bytes, bell)?;
            Ok((Kind::Slots(Box::new(slots)), Vec::new()))
        };
        match target {
            Target::Own => slots(&private::for_this_process(processes.into(), None)?),
            Target::Private(socket) => slots(socket),
            Target::Servers { servers, key, timeout_s } => {
                let key = key.as_deref().map(Key::from_file).transpose()?;
                let silent = Duration::from_secs((*timeout_s).into());
                let opened = servers.iter().map(|server| open_server(server, &shape, processes, key.clone(), silent));
                let opened = opened.collect::<Result<_, _>>()?;
                let bounce_bytes = shape.slot_bytes.max(RUN_BYTES_MAX as usize);
                let (remote, senders) = Remote::with_extents(opened, shape, shape.slot_bytes, bounce_bytes, silent)?;
                Ok((Kind::Remote(Box::new(remote)), senders))
            }
        }
    }
}

fn open_server(
    server: &ServerSpec,
    shape: &Shape,
    processes: u16,
    key: Option<Key>,
    silent: Duration,
) -> Result<Opened, OpenError> {
    let name = format!("memory server {}", server.endpoint);
    let mut options = SessionOptions::for_endpoint(&server.endpoint, shape.slot_bytes as u32);
    (options.key, options.silent_timeout) = (key, silent);
    let session = Session::open(&server.endpoint, &options)
        .map_err(|source| OpenError::Server { server: name.clone(), source })?;
    let capacity_bytes = session.info().capacity_bytes;
    let limit_bytes = server.capacity.map(|bytes| bytes / u64::from(processes));
    Ok(Opened { name, session, options, capacity_bytes, limit_bytes })
}
