//! `--metrics`: serves the figures of a run or of a memory server to a monitoring system, in the OpenMetrics format.
//!
//! One thread answers all peers. It holds a bounded number of connections, each for a bounded time, and reads a bounded
//! number of bytes. So a peer can neither stop the run nor make it use more memory.

mod address;
mod http;
mod run;
mod server;
mod sheet;

use std::io::{self, PipeReader, PipeWriter};
use std::net::{SocketAddr, TcpListener};
use std::thread::JoinHandle;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use thiserror::Error;

use crate::message::say;

pub(crate) use address::Address;
pub(crate) use run::RunFigures;
pub(crate) use server::ServerFigures;

/// Why metrics cannot be served.
#[derive(Debug, Error)]
#[error(
    "cannot serve metrics on {address}: {source}; give --metrics another port of this machine, or 0 for any free one"
)]
pub(crate) struct MetricsError {
    address: Address,
    source: io::Error,
}

/// An address that is listened on. No peer is answered yet.
pub(crate) struct Listening {
    listener: TcpListener,
    local: SocketAddr,
    address: Address,
}

/// A thread that answers peers until this value is dropped.
pub(crate) struct Serving {
    /// Its end is the signal to stop.
    stop: Option<PipeWriter>,
    thread: Option<JoinHandle<()>>,
}

impl Listening {
    /// Listens on an address.
    pub(crate) fn on(address: &Address) -> Result<Listening, MetricsError> {
        let failed = |source| MetricsError { address: address.clone(), source };
        let listener = address.listen().map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let local = listener.local_addr().map_err(failed)?;
        Ok(Listening { listener, local, address: address.clone() })
    }

    /// Starts the thread that answers with these figures, and says the address on standard error.
    pub(crate) fn serve(self, figures: impl Collector) -> Result<Serving, MetricsError> {
        let Listening { listener, local, address } = self;
        let failed = |source| MetricsError { address, source };
        let mut registry = Registry::default();
        registry.register_collector(Box::new(figures));
        let (stopped, stop): (PipeReader, PipeWriter) = match io::pipe() {
            Ok(ends) => ends,
            Err(source) => return Err(failed(source)),
        };
        let thread = std::thread::Builder::new()
            .name("metrics".to_owned())
            .spawn(move || http::serve(&listener, &stopped, &|| page(&registry)))
            .map_err(failed)?;
        say(&format!("metrics are at http://{local}{}", http::PATH));
        Ok(Serving { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        drop(self.stop.take());
        // Ignored: an error means that the thread has panicked, and the panic has been printed.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// Returns all figures as text.
fn page(registry: &Registry) -> String {
    let mut text = String::new();
    // Writing into a string cannot fail.
    let (Ok(()) | Err(_)) = encode(&mut text, registry);
    text
}
