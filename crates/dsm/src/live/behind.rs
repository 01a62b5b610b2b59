//! The layout of a rank's memfd behind the region, and the mappings of the memory of other ranks on this host.

use std::fs::OpenOptions;
use std::os::fd::AsFd;

use hanare_sys::map::{self, MapError, Mapping};

use super::gates::Gates;
use super::job::{Job, Transfer};
use super::meet::Join;
use super::offers::Offers;
use super::post::Post;
use super::region::PAGE;

/// Sizes in bytes of the parts of a rank's memfd, in the order of the parts. The region comes first. With zero copy,
/// the message rings follow. If the rank's memory is limited, the pin words follow. If it is not, the status bytes of
/// published pages and the twins follow, but only with zero copy.
#[derive(Clone, Copy, Debug)]
pub(super) struct Behind {
    region: u64,
    post: u64,
    gates: u64,
    offers: u64,
    twins: u64,
}

impl Behind {
    pub(super) fn of(job: &Job) -> Self {
        let is_zero_copy = job.transfer == Transfer::ZeroCopy && job.ranks > 1;
        let is_limited = job.local_bytes.is_some();
        let when = |is: bool, bytes: u64| if is { bytes } else { 0 };
        let is_offered = is_zero_copy && !is_limited;
        Self {
            region: job.region_bytes,
            post: when(is_zero_copy, Post::len_for(job.ranks)),
            gates: when(is_limited, Gates::len_for(pages_of(job))),
            offers: when(is_offered, Offers::len_for(pages_of(job))),
            twins: when(is_offered, job.region_bytes),
        }
    }

    /// Returns the total size in bytes of all parts behind the region.
    pub(super) fn bytes(self) -> u64 {
        self.post + self.gates + self.offers + self.twins
    }

    /// Returns the offset of the pin words, or of the status bytes of published pages if there are no pin words.
    pub(super) fn gates_at(self) -> u64 {
        self.region + self.post
    }

    /// Returns the offset of the twins. `None` if peers cannot read the twins.
    pub(super) fn twins_at(self) -> Option<u64> {
        (self.twins > 0).then_some(self.gates_at() + self.gates + self.offers)
    }

    /// Maps the message rings. `None` without zero copy.
    pub(super) fn map_post(self, memory: impl AsFd, ranks: u16) -> Result<Option<Post>, MapError> {
        (self.post > 0).then(|| Post::map(memory, self.region, ranks)).transpose()
    }

    /// Maps the status bytes of published pages. `None` if the rank publishes no pages.
    pub(super) fn map_offers(self, memory: impl AsFd, pages: u32) -> Result<Option<Offers>, MapError> {
        (self.offers > 0).then(|| Offers::map(memory, self.gates_at(), pages)).transpose()
    }
}

/// Returns the number of pages of the region.
pub(super) fn pages_of(job: &Job) -> u32 {
    u32::try_from(job.region_bytes / PAGE as u64).unwrap_or(u32::MAX)
}

/// The mapped memory of another rank on this host.
pub(super) struct Reach {
    region: Mapping,
    post: Post,
    /// The rank's pin words. `None` if the rank's memory is unlimited. All its pages are then always in memory.
    gates: Option<Gates>,
    shelf: Option<Shelf>,
}

/// The status of another rank's published pages, and that rank's twins. For a watched page, the twin is published
/// instead of the page.
pub(super) struct Shelf {
    pub(super) offers: Offers,
    pub(super) twins: Mapping,
}

/// Maps the memory of another rank on this host.
pub(super) fn peer_memory(join: &Join, job: &Job) -> Result<Reach, String> {
    let path = format!("/proc/{}/fd/{}", join.process, join.memory);
    let advice = "set HANARE_TRANSFER=message (hanare launch --transfer message)";
    let failed = |error: &dyn std::fmt::Display| {
        format!("cannot reach the memory of rank {} by {path}: {error}; {advice}", join.rank)
    };
    let file = OpenOptions::new().read(true).write(true).open(&path).map_err(|error| failed(&error))?;
    // The memfd must have the expected length, and keep it. An access beyond its end would kill this process.
    let (bytes, behind, pages) = (job.region_bytes, Behind::of(job), pages_of(job));
    if file.metadata().map_err(|error| failed(&error))?.len() != bytes + behind.bytes() {
        return Err(failed(&"it has another size"));
    }
    if !map::has_sealed_length(&file) {
        return Err(failed(&"its length is not sealed"));
    }
    let map = || {
        let region = Mapping::shared(&file, 0, bytes as usize)?;
        let post = Post::map(&file, bytes, join.ranks)?;
        let gates = (behind.gates > 0).then(|| Gates::map(&file, behind.gates_at(), pages)).transpose()?;
        let shelf = match (behind.map_offers(&file, pages)?, behind.twins_at()) {
            (Some(offers), Some(at)) => Some(Shelf { offers, twins: Mapping::shared(&file, at, bytes as usize)? }),
            _ => None,
        };
        Ok::<_, MapError>(Reach { region, post, gates, shelf })
    };
    map().map_err(|error| failed(&error))
}

impl Reach {
    /// Separates the message rings, which the link uses, from the other mappings.
    pub(super) fn split(self) -> (Post, Pages) {
        let Self { region, post, gates, shelf } = self;
        (post, Pages { region, gates, shelf })
    }
}

/// The mapped memory of another rank on this host, without its message rings.
pub(super) struct Pages {
    pub(super) region: Mapping,
    pub(super) gates: Option<Gates>,
    pub(super) shelf: Option<Shelf>,
}
