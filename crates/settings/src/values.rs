//! The types of single values of the settings, and the functions that parse and print them.

use std::fmt;
use std::str::FromStr;

use hanare_wire::{Endpoint, EndpointError};
use thiserror::Error;

use crate::similar::nearest;

/// Size in bytes of the smallest page that Hanare moves. Far allocations consist of whole pages of this size.
pub const PAGE_SIZE_MIN: u32 = 4 << 10;
/// Size in bytes of the largest page that Hanare moves.
pub const PAGE_SIZE_MAX: u32 = 2 << 20;

const RESERVE_MIN: u64 = 16 << 20;
const RESERVE_MAX: u64 = 64 << 40;
/// Largest `HANARE_TIMEOUT`, in seconds.
pub const TIMEOUT_MAX_S: u32 = 3600;
/// Longest name of a policy or prefetcher, in bytes. The name must fit into a 64-byte field of the shared counters.
const NAME_LEN_MAX: usize = 63;

/// Why a single value was refused. The message contains the value, but not the name of its flag or variable.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ValueError {
    /// The text is not a size.
    #[error("'{0}' is not a size; give bytes, or a number with K, M, G or T, such as 256M or 1.5G")]
    NotASize(String),
    /// The text is neither a size nor a word that stands for one.
    #[error("'{text}' is neither a size nor {words}; give {words}, bytes, or a number with K, M, G or T, such as 256M")]
    NotASizeNor {
        /// The text given.
        text: String,
        /// The words allowed.
        words: &'static str,
    },
    /// The size has more than 64 bits.
    #[error("'{0}' is more than 64 bits can count; give a smaller size")]
    TooLarge(String),
    /// The text is not a percentage.
    #[error("'{0}' is not a percentage from 1% to 100%")]
    NotAPercentage(String),
    /// The text is not a page size.
    #[error("'{0}' is not a page size; give auto or a power of two from 4K to 2M")]
    NotAPageSize(String),
    /// The text is not a trap mode.
    #[error("'{0}' is not a trap mode; {meant}give auto, thread, sigbus or sigsegv", meant = meant(.0, &MODES))]
    NotAMode(String),
    /// The text is not a value of `HANARE_OVERCOMMIT`.
    #[error("'{0}' is not a way to overcommit; give heuristic, always or never")]
    NotAnOvercommit(String),
    /// The text does not say what to do when a server is lost.
    #[error("'{0}' is not what a run does when it loses a memory server; give end or wait")]
    NotOnLoss(String),
    /// The text is not a value of `HANARE_REDUNDANCY`.
    #[error(
        "'{0}' is not a redundancy; give none, mirror or parity:K+M, with K data parts (1, 2 or 4) and at least one parity \
         part, 8 parts at most"
    )]
    NotARedundancy(String),
    /// The text is neither `on` nor `off`.
    #[error("'{0}' is neither on nor off")]
    NotASwitch(String),
    /// The text is not a value of `HANARE_SEAL`.
    #[error("'{0}' does not say whether to seal pages; give auto, on or off")]
    NotASeal(String),
    /// The text is not a slowdown.
    #[error("'{0}' is not a slowdown; give a number from 1.05 to 100, such as 1.2")]
    NotASlowdown(String),
    /// The text does not have the form of a name.
    #[error(
        "'{0}' is not a name; give NAME or NAME:PARAMETER=VALUE,... in 63 lower-case letters, digits, '-' or '_' at most"
    )]
    NotAName(String),
    /// The text does not name a memory server.
    #[error("'{text}' does not name a memory server: {reason}")]
    NotAServer {
        /// The text given.
        text: String,
        /// What is wrong with the text.
        reason: &'static str,
    },
    /// The text is not an address.
    #[error("{0}")]
    NotAnAddress(String),
    /// The text is not a size within the range.
    #[error("'{text}' is not a size from {} to {}", format_size(*min), format_size(*max))]
    SizeOutOfRange {
        /// The text given.
        text: String,
        /// Smallest size allowed, in bytes.
        min: u64,
        /// Largest size allowed, in bytes.
        max: u64,
    },
    /// The text is not a whole number within the range.
    #[error("'{text}' is not a whole number from {min} to {max}")]
    OutOfRange {
        /// The text given.
        text: String,
        /// Smallest value allowed.
        min: u64,
        /// Largest value allowed.
        max: u64,
    },
}

/// The trap modes.
const MODES: [&str; 3] = ["thread", "sigbus", "sigsegv"];

/// Returns the question whether the user meant a known word that is much like `text`. Empty if there is none.
fn meant(text: &str, known: &[&'static str]) -> String {
    let lower = text.to_ascii_lowercase();
    let same = known.iter().copied().find(|word| *word == lower);
    let near = same.or_else(|| nearest(&lower, known.iter().copied()));
    near.map_or(String::new(), |near| format!("did you mean '{near}'? Otherwise "))
}

/// How much of the program's far memory may be in this machine's memory at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Local {
    /// A fixed number of bytes.
    Bytes(u64),
    /// A percentage, from 1 to 100, of the far memory that the program has allocated.
    Percent(u8),
}

impl FromStr for Local {
    type Err = ValueError;
    fn from_str(text: &str) -> Result<Self, ValueError> {
        let Some(number) = text.trim().strip_suffix('%') else {
            return parse_size(text).map(Local::Bytes);
        };
        match number.trim_end().parse::<u8>() {
            Ok(percent @ 1..=100) if !number.starts_with('+') => Ok(Local::Percent(percent)),
            _ => Err(ValueError::NotAPercentage(text.to_owned())),
        }
    }
}

impl fmt::Display for Local {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Local::Bytes(bytes) => f.write_str(&format_size(*bytes)),
            Local::Percent(percent) => write!(f, "{percent}%"),
        }
    }
}

/// The page size that the user asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PageSize {
    /// The engine chooses the page size while the program runs.
    Auto,
    /// A power of two from 4 KiB to 2 MiB, in bytes.
    Fixed(u32),
}

impl PageSize {
    /// Returns the smallest page size, in bytes, that the engine may use. The budget must hold four pages of this size.
    #[must_use]
    pub fn smallest(self) -> u32 {
        match self {
            PageSize::Auto => PAGE_SIZE_MIN,
            PageSize::Fixed(bytes) => bytes,
        }
    }
}

impl FromStr for PageSize {
    type Err = ValueError;
    fn from_str(text: &str) -> Result<Self, ValueError> {
        if text == "auto" {
            return Ok(PageSize::Auto);
        }
        let refused = || ValueError::NotAPageSize(text.to_owned());
        let bytes = u32::try_from(parse_size(text).map_err(|_| refused())?).map_err(|_| refused())?;
        if bytes.is_power_of_two() && (PAGE_SIZE_MIN..=PAGE_SIZE_MAX).contains(&bytes) {
            Ok(PageSize::Fixed(bytes))
        } else {
            Err(refused())
        }
    }
}

impl fmt::Display for PageSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PageSize::Auto => f.write_str("auto"),
            PageSize::Fixed(bytes) => f.write_str(&format_size(u64::from(*bytes))),
        }
    }
}

/// How accesses to absent far pages are trapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Hanare chooses the best mode that the machine allows.
    Auto,
    /// A handler thread reads userfaultfd. This mode works with every system call.
    Thread,
    /// The faulting thread resolves its own fault in a SIGBUS handler. This is the fastest mode.
    Sigbus,
    /// Traps accesses with mprotect and a SIGSEGV handler. This mode needs no privilege.
    Sigsegv,
}

/// When an allocation is refused for lack of room on the memory servers. The choices are like those of the kernel's
/// `vm.overcommit_memory`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Overcommit {
    /// Refuses an allocation if its size plus the size of all pages accessed so far exceeds the servers' room.
    Heuristic,
    /// Refuses no allocation. The run ends only if the servers are full.
    Always,
    /// Refuses an allocation if its size plus the size of all earlier allocations exceeds the servers' room.
    Never,
}

impl FromStr for Overcommit {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        match text {
            "heuristic" => Ok(Overcommit::Heuristic),
            "always" => Ok(Overcommit::Always),
            "never" => Ok(Overcommit::Never),
            _ => Err(ValueError::NotAnOvercommit(text.to_owned())),
        }
    }
}

impl fmt::Display for Overcommit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Overcommit::Heuristic => "heuristic",
            Overcommit::Always => "always",
            Overcommit::Never => "never",
        })
    }
}

/// What a run does that has lost a memory server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnLoss {
    /// Ends at once.
    End,
    /// Waits until the server is back with the same pages.
    Wait,
}

impl FromStr for OnLoss {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        match text {
            "end" => Ok(OnLoss::End),
            "wait" => Ok(OnLoss::Wait),
            _ => Err(ValueError::NotOnLoss(text.to_owned())),
        }
    }
}

impl fmt::Display for OnLoss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            OnLoss::End => "end",
            OnLoss::Wait => "wait",
        })
    }
}

impl FromStr for Mode {
    type Err = ValueError;
    fn from_str(text: &str) -> Result<Self, ValueError> {
        match text {
            "auto" => Ok(Mode::Auto),
            "thread" => Ok(Mode::Thread),
            "sigbus" => Ok(Mode::Sigbus),
            "sigsegv" => Ok(Mode::Sigsegv),
            _ => Err(ValueError::NotAMode(text.to_owned())),
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Mode::Auto => "auto",
            Mode::Thread => "thread",
            Mode::Sigbus => "sigbus",
            Mode::Sigsegv => "sigsegv",
        })
    }
}

/// A memory server, and how many bytes this run may store on it. The text is `HOST:PORT` or `unix:PATH`, followed by
/// `=CAPACITY` if there is a limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerSpec {
    /// The address on which the server listens.
    pub endpoint: Endpoint,
    /// Most bytes that this run may store on the server. `None` means no limit.
    pub capacity: Option<u64>,
}

impl FromStr for ServerSpec {
    type Err = ValueError;
    fn from_str(text: &str) -> Result<Self, ValueError> {
        let refused = |reason| ValueError::NotAServer { text: text.to_owned(), reason };
        if text.is_empty() {
            return Err(refused("it is empty; give HOST:PORT"));
        }
        if text.contains(',') {
            return Err(refused("an address holds no comma; name each server by a flag of its own"));
        }
        let (address, capacity) = match text.rsplit_once('=') {
            Some((address, size)) => (address, Some(parse_size(size)?)),
            None => (text, None),
        };
        if capacity == Some(0) {
            return Err(refused("a capacity of 0 holds nothing; leave the server out"));
        }
        let endpoint = address.parse().map_err(|error: EndpointError| ValueError::NotAnAddress(error.to_string()))?;
        Ok(ServerSpec { endpoint, capacity })
    }
}

impl fmt::Display for ServerSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.endpoint)?;
        match self.capacity {
            Some(bytes) => write!(f, "={}", format_size(bytes)),
            None => Ok(()),
        }
    }
}

/// Parses a size in bytes: a plain number, or a number with one of the units K, M, G and T. The units are powers of
/// 1024, and `KB` and `KiB` mean the same as `K`. A number with a unit may have a fraction.
///
/// # Errors
/// Returns an error for any other text, and for a size beyond 64 bits.
pub fn parse_size(text: &str) -> Result<u64, ValueError> {
    let not_a_size = || ValueError::NotASize(text.to_owned());
    let trimmed = text.trim();
    let digits_end = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(digits_end);
    let shift = unit_shift(unit).ok_or_else(not_a_size)?;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() || fraction.contains('.') || (number.contains('.') && (fraction.is_empty() || shift == 0)) {
        return Err(not_a_size());
    }
    let too_large = || ValueError::TooLarge(text.to_owned());
    let whole: u64 = whole.parse().map_err(|_| too_large())?;
    let whole = u64::try_from(u128::from(whole) << shift).map_err(|_| too_large())?;
    whole.checked_add(fraction_bytes(fraction, shift)).ok_or_else(too_large)
}

/// Converts the decimal fraction of a size to bytes. The unit is 2^`shift` bytes. Uses the first nine digits only,
/// because further digits change even a size in terabytes by less than 1100 bytes.
fn fraction_bytes(fraction: &str, shift: u32) -> u64 {
    let digits = fraction.bytes().take(9);
    let (value, scale) =
        digits.fold((0_u128, 1_u128), |(value, scale), digit| (value * 10 + u128::from(digit - b'0'), scale * 10));
    // `value` is less than `scale`, so the quotient is less than 2^`shift` and fits into 64 bits.
    ((value << shift) / scale) as u64
}

fn unit_shift(unit: &str) -> Option<u32> {
    let unit = unit.trim_start().to_ascii_lowercase();
    if unit.is_empty() || unit == "b" {
        return Some(0);
    }
    let (letter, rest) = unit.split_at_checked(1)?;
    if !matches!(rest, "" | "b" | "ib") {
        return None;
    }
    match letter {
        "k" => Some(10),
        "m" => Some(20),
        "g" => Some(30),
        "t" => Some(40),
        _ => None,
    }
}

/// Returns `bytes` as a whole number of the largest unit that divides it, such as `256M`, `1536K` or `4097`.
/// [`parse_size`] parses the text to `bytes`.
#[must_use]
pub fn format_size(bytes: u64) -> String {
    for (shift, unit) in [(40, 'T'), (30, 'G'), (20, 'M'), (10, 'K')] {
        if bytes != 0 && bytes.is_multiple_of(1 << shift) {
            return format!("{}{unit}", bytes >> shift);
        }
    }
    bytes.to_string()
}

/// Checks the form of the name of a policy or prefetcher, with its parameters. Does not check whether the policy or
/// prefetcher exists.
///
/// # Errors
/// Returns an error if the text is empty, has more than 63 bytes, or has characters other than `a-z`, `0-9` and
/// `-_:=,`.
pub fn parse_name(text: &str) -> Result<String, ValueError> {
    let fits = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-_:=,".contains(&byte);
    if text.is_empty() || text.len() > NAME_LEN_MAX || !text.bytes().all(fits) {
        return Err(ValueError::NotAName(text.to_owned()));
    }
    Ok(text.to_owned())
}

/// Parses a list of memory servers with commas between them.
///
/// # Errors
/// Returns an error if a part of the list does not name a server.
pub fn parse_servers(text: &str) -> Result<Vec<ServerSpec>, ValueError> {
    text.split(',').map(ServerSpec::from_str).collect()
}

pub(super) fn parse_number(text: &str, min: u64, max: u64) -> Result<u64, ValueError> {
    let refused = || ValueError::OutOfRange { text: text.to_owned(), min, max };
    let number = text.parse::<u64>().map_err(|_| refused())?;
    if (min..=max).contains(&number) { Ok(number) } else { Err(refused()) }
}

/// Parses a value of `HANARE_FAR`: `all`, `large`, or a size. Returns the size in bytes of the smallest allocation that
/// is placed in far memory. This is 0 for `all`.
///
/// # Errors
/// Returns an error for any other word, and for a size larger than any reservation.
pub fn parse_far(text: &str) -> Result<usize, ValueError> {
    match text {
        "all" => Ok(0),
        "large" => Ok(super::FAR_LARGE),
        _ => size_or("all or large", text, 1).map(|bytes| bytes as usize),
    }
}

/// Returns the text that [`parse_far`] parses to `far`.
#[must_use]
pub fn format_far(far: usize) -> String {
    match far {
        0 => "all".to_owned(),
        super::FAR_LARGE => "large".to_owned(),
        bytes => format_size(bytes as u64),
    }
}

/// Parses a value of `HANARE_NEAR`: a size, or `off` for no limit, which is 0.
///
/// # Errors
/// Returns an error for any other word, and for a size below 1 MiB or above any reservation.
pub fn parse_near(text: &str) -> Result<u64, ValueError> {
    if text == "off" { Ok(0) } else { size_or("off", text, 1 << 20) }
}

/// Returns the text that [`parse_near`] parses to `near`.
#[must_use]
pub fn format_near(near: u64) -> String {
    if near == 0 { "off".to_owned() } else { format_size(near) }
}

pub(super) fn parse_reserve(text: &str) -> Result<u64, ValueError> {
    // Rounds up to whole pages of the largest size, so that the end of the reservation is aligned for every page size.
    let bytes = bounded_size(text, RESERVE_MIN, RESERVE_MAX)?;
    Ok(bytes.next_multiple_of(u64::from(PAGE_SIZE_MAX)))
}

pub(super) fn parse_trace_bytes(text: &str) -> Result<u64, ValueError> {
    bounded_size(text, hanare_paging::trace::BYTES_MIN, RESERVE_MAX)
}

pub(super) fn parse_switch(text: &str) -> Result<bool, ValueError> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err(ValueError::NotASwitch(text.to_owned())),
    }
}

fn bounded_size(text: &str, min: u64, max: u64) -> Result<u64, ValueError> {
    let bytes = parse_size(text)?;
    if (min..=max).contains(&bytes) {
        Ok(bytes)
    } else {
        Err(ValueError::SizeOutOfRange { text: text.to_owned(), min, max })
    }
}

/// Parses a size of at least `min`, where `words` are allowed too.
fn size_or(words: &'static str, text: &str, min: u64) -> Result<u64, ValueError> {
    bounded_size(text, min, RESERVE_MAX).map_err(|error| match error {
        ValueError::NotASize(text) => ValueError::NotASizeNor { text, words },
        other => other,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sizes_parse_as_documented() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("64K", 64 << 10),
            ("64k", 64 << 10),
            ("64KB", 64 << 10),
            ("64KiB", 64 << 10),
            (" 256 M ", 256 << 20),
            ("1G", 1 << 30),
            ("1.5G", 3 << 29),
            ("0.25T", 1 << 38),
            ("100B", 100),
            ("18446744073709551615", u64::MAX),
            ("1.0000000000000000000000001K", 1024),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn what_is_not_a_size_is_refused() {
        for text in
            ["", " ", "K", "-1", "+1", "1.5", "1..5G", "1.G", ".5G", "1GG", "1Q", "12e3", "0x10", "1 2", "é", "1é"]
        {
            assert_eq!(parse_size(text), Err(ValueError::NotASize(text.to_owned())), "{text}");
        }
        for text in ["18446744073709551616", "16777216T", "99999999999999999999999G"] {
            assert_eq!(parse_size(text), Err(ValueError::TooLarge(text.to_owned())), "{text}");
        }
    }

    #[test]
    fn local_page_size_and_mode_parse() {
        assert_eq!("256M".parse(), Ok(Local::Bytes(256 << 20)));
        assert_eq!("25%".parse(), Ok(Local::Percent(25)));
        assert_eq!("100%".parse(), Ok(Local::Percent(100)));
        for text in ["0%", "101%", "%", "-5%", "+5%", "2.5%", "300%"] {
            assert_eq!(text.parse::<Local>(), Err(ValueError::NotAPercentage(text.to_owned())));
        }
        assert_eq!("auto".parse(), Ok(PageSize::Auto));
        assert_eq!("64K".parse(), Ok(PageSize::Fixed(64 << 10)));
        for text in ["2K", "4M", "5000", "0", "", "4G", "x"] {
            assert_eq!(text.parse::<PageSize>(), Err(ValueError::NotAPageSize(text.to_owned())));
        }
        assert_eq!("sigbus".parse(), Ok(Mode::Sigbus));
        assert_eq!("SIGBUS".parse::<Mode>(), Err(ValueError::NotAMode("SIGBUS".to_owned())));
    }

    #[test]
    fn servers_parse_with_and_without_a_capacity() {
        let plain: ServerSpec = "10.0.0.1:7000".parse().unwrap();
        assert_eq!(plain.endpoint, Endpoint::Tcp("10.0.0.1:7000".to_owned()));
        assert_eq!(plain.capacity, None);
        let limited: ServerSpec = "host:7000=2G".parse().unwrap();
        assert_eq!(limited.capacity, Some(2 << 30));
        assert_eq!(limited.to_string().parse::<ServerSpec>().unwrap(), limited);
        for text in ["", "a:1,b:2", "a:1=0", "a:1=x"] {
            assert!(text.parse::<ServerSpec>().is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn no_text_panics(text in ".{0,40}") {
            let _ = parse_size(&text);
            let _ = text.parse::<Local>();
            let _ = text.parse::<PageSize>();
            let _ = text.parse::<ServerSpec>();
            let _ = parse_servers(&text);
            let _ = parse_name(&text);
        }

        #[test]
        fn numbers_with_any_unit_never_panic(text in "[0-9]{0,24}[.]?[0-9]{0,24}[kKmMgGtT]?[iI]?[bB]?") {
            let _ = parse_size(&text);
        }

        #[test]
        fn formatted_sizes_read_back(bytes: u64, shift in 0_u32..64) {
            let bytes = bytes >> shift << (shift / 2);
            prop_assert_eq!(parse_size(&format_size(bytes)), Ok(bytes));
        }
    }
}
