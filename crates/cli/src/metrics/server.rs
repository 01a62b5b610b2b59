//! The figures of a memory server: `hanare_server_...`.

use std::fmt;

use hanare_server::StatusHandle;
use hanare_wire::Status;
use hanare_wire::payload::{NO_QUOTA, release_text};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;

use super::sheet::Sheet;

/// The state of a server of this process, read anew for each answer.
#[derive(Debug)]
pub(crate) struct ServerFigures(pub(crate) StatusHandle);

impl Collector for ServerFigures {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        // A server that has ended has no figures.
        self.0.status().map_or(Ok(()), |status| encode(&mut Sheet(encoder), &status))
    }
}

fn encode(sheet: &mut Sheet<'_>, status: &Status) -> fmt::Result {
    let release = release_text(status.release);
    sheet.info("hanare_server", "The release of this memory server.", &[("version", &release)])?;
    sheet.now("hanare_server_sessions", "Open sessions, one for each process with far memory.", status.sessions)?;
    let used = status.memory_bytes.saturating_sub(status.memory_free_bytes);
    sheet.bytes_now(
        "hanare_server_memory_limit",
        "Memory that the server lends at most.",
        status.memory_limit_bytes,
    )?;
    sheet.bytes_now("hanare_server_memory_used", "Memory that pages use.", used)?;
    let help = "Memory counted against the limit: what pages use, and blocks kept for reuse.";
    sheet.bytes_now("hanare_server_memory", help, status.memory_bytes)?;
    sheet.bytes_now("hanare_server_spill", "Pages in spill files.", status.spill_bytes)?;
    let help = "Free space on the disk of the spill directory.";
    sheet.bytes_now("hanare_server_spill_free", help, status.spill_free_bytes)?;
    if status.client_quota_bytes != NO_QUOTA {
        let help = "Most that each client may keep.";
        sheet.bytes_now("hanare_server_client_quota", help, status.client_quota_bytes)?;
    }
    sheet.now("hanare_server_slots", "Slots that hold a page.", status.slots)?;
    sheet.now("hanare_server_slots_free", "Freed slots that are reserved for their sessions.", status.slots_free)?;
    sheet.count("hanare_server_slots_reused", "Freed slots that were used again.", status.slots_reused)?;
    let help = "Bytes of pages sent. Clients on the same host copy their pages themselves, which is not counted.";
    sheet.bytes_total("hanare_server_sent", help, status.read_bytes)?;
    sheet.bytes_total(
        "hanare_server_received",
        "Bytes of pages received, with the same exception.",
        status.write_bytes,
    )?;
    let help = "1 if the machine is short of memory, so that the server hands out no more. 0 if not.";
    sheet.now("hanare_server_short_of_memory", help, status.is_short_of_memory)?;
    sheet.time_now("hanare_server_uptime", "Time since the start of the server.", status.uptime_ms as f64 / 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;
    use hanare_server::{Server, ServerConfig};
    use prometheus_client::registry::Registry;

    #[test]
    fn an_idle_server_has_figures_until_it_ends() {
        let mut config = ServerConfig::new(vec!["127.0.0.1:0".parse().unwrap()], 64 << 20);
        config.client_quota = Some(16 << 20);
        let server = Server::bind(config).unwrap();
        let mut registry = Registry::default();
        registry.register_collector(Box::new(ServerFigures(server.status_handle())));
        let page = super::super::page(&registry);
        for line in [
            "hanare_server_info{version=\"0.1.0\"} 1",
            "hanare_server_memory_limit_bytes 67108864",
            "hanare_server_memory_used_bytes 0",
            "hanare_server_client_quota_bytes 16777216",
            "# TYPE hanare_server_sent_bytes counter",
            "hanare_server_sent_bytes_total 0",
        ] {
            assert!(page.lines().any(|shown| shown == line), "{line} is not in\n{page}");
        }
        drop(server);
        assert_eq!(super::super::page(&registry), "# EOF\n");
    }
}
