//! The settings that a rank reads from its environment: its number, the number of ranks, where they meet, and options.

use std::path::PathBuf;

use hanare_paging::{Space, policy, prefetch};
use hanare_settings::{DEFAULT_PREFETCH, Seal, parse_size};
use hanare_store::Target;

use super::elsewhere;
use crate::coherence::{Protocol, Rank};
use crate::limits::RANKS_MAX;

/// Default size of the shared region in bytes.
const REGION_BYTES: u64 = 64 << 30;

/// Default replacement policy. In a loop over more pages than fit into memory, this policy keeps a part of the pages
/// until they are used again.
const POLICY: &str = "lirs";
const POLICIES_WANTED: &str = "a replacement policy ('hanare run --policy help' lists them)";
const PREFETCHERS_WANTED: &str = "a prefetcher ('hanare run --prefetch help' lists them)";

/// First of the `PORTS` ports at which rank 0 of a Slurm step may listen. They are below the ports that the system
/// assigns by itself.
const PORT_FIRST: u32 = 20_000;
const PORTS: u32 = 10_000;

/// How pages travel between ranks (section 3).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Transfer {
    /// In messages: copied into a send buffer and out of a receive buffer.
    Message,
    /// Without messages: ranks read and write each other's memory directly.
    ZeroCopy,
}

/// Where the ranks of a job meet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Meet {
    /// On one host: the directory of their sockets.
    Folder(PathBuf),
    /// By TCP: rank 0 listens at this HOST:PORT.
    Address(String),
}

/// One rank's part in a job.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Job {
    /// The number of this rank.
    pub rank: Rank,
    /// Number of ranks.
    pub ranks: u16,
    /// Number of the job, which tells apart jobs that meet at one address. 0 if unknown.
    pub number: u64,
    /// Where the ranks meet. `None` for a single rank.
    pub meet: Option<Meet>,
    /// Whether links may leave this machine although they are not protected.
    pub trusts_network: bool,
    /// The file with the key of links by TCP, and of the memory servers. `None` if there is no key.
    pub key: Option<PathBuf>,
    /// Process number of the launcher. The rank ends when the launcher does. `None` without a launcher.
    pub launcher: Option<i32>,
    /// The protocol for stale copies.
    pub protocol: Protocol,
    /// Whether a page's home moves to the page's main writer.
    pub migrate: bool,
    /// How pages travel.
    pub transfer: Transfer,
    /// Whether each rank is bound to its share of the CPUs. This needs at least one CPU for each rank.
    pub bind: bool,
    /// Size of the region in bytes, a multiple of the page size.
    pub region_bytes: u64,
    /// Maximum number of bytes of shared pages that a rank keeps in memory. Beyond this number, the rank drops copies
    /// and evicts home pages. `None` means no limit.
    pub local_bytes: Option<u64>,
    /// The backing store of evicted pages.
    pub elsewhere: Target,
    /// Whether evicted pages are sealed.
    pub seal: Seal,
    /// The replacement policy for shared pages, named as in `hanare run --policy`.
    pub policy: String,
    /// The prefetcher for shared pages, named as in `hanare run --prefetch`.
    pub prefetch: String,
    /// Directory to which this rank writes its counters at shutdown. `None` writes none.
    pub counts: Option<PathBuf>,
}

/// Why an environment is invalid.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum JobError {
    /// A variable has an invalid value.
    #[error("{name}={value} is not {wanted}; correct it, or start the ranks with 'hanare launch'")]
    Value {
        /// The variable.
        name: &'static str,
        /// The variable's value.
        value: String,
        /// The values that the variable may have.
        wanted: &'static str,
    },
    /// A variable that another variable requires is missing.
    #[error("{name} is not set although {other} is; start the ranks with 'hanare launch', srun or mpirun")]
    Missing {
        /// The variable.
        name: &'static str,
        /// The variable that requires it.
        other: &'static str,
    },
    /// Zero copy was requested across hosts.
    #[error("HANARE_TRANSFER=zero-copy is for ranks of one host; set HANARE_TRANSFER=message, or ask for one host")]
    ZeroCopy,
    /// The ranks are on several hosts, and the address of rank 0 is unknown.
    #[error("the ranks are on several hosts; set HANARE_RANK0=HOST:PORT, an address of rank 0's host, for all of them")]
    NoAddress,
}

/// The variables that Open MPI and Slurm set: the rank, the number of ranks, and variables that identify the job.
const STARTERS: [(&str, &str, &[&str]); 2] = [
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", &["PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"]),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", &["SLURM_JOB_ID", "SLURM_STEP_ID"]),
];

impl Job {
    /// Reads the settings from the environment through `get`.
    ///
    /// # Errors
    /// The variables contradict each other, or one has an invalid value.
    pub fn from_env(get: impl Fn(&str) -> Option<String>) -> Result<Self, JobError> {
        let (rank, ranks, meet, job) = place(&get)?;
        let choose = |name, wanted, choices: &[&str]| match get(name) {
            None => Ok(0),
            Some(value) => {
                choices.iter().position(|choice| *choice == value).ok_or(JobError::Value { name, value, wanted })
            }
        };
        let protocol =
            choose("HANARE_PROTOCOL", "invalidate, update or adaptive", &["adaptive", "invalidate", "update"])?;
        let by_tcp = matches!(meet, Some(Meet::Address(_)));
        let transfer = choose("HANARE_TRANSFER", "message or zero-copy", &["zero-copy", "message"])?;
        let transfer = match get("HANARE_TRANSFER") {
            Some(_) if by_tcp && transfer == 0 => return Err(JobError::ZeroCopy),
            None if by_tcp => 1,
            _ => transfer,
        };
        let trusts = choose("HANARE_TRUSTED_NETWORK", "yes or no", &["no", "yes"])?;
        let bind = choose("HANARE_BIND", "yes or no", &["no", "yes"])?;
        let home = choose("HANARE_HOME_POLICY", "static or migrate", &["static", "migrate"])?;
        let trial = Space { units: 64, block_units: 1, seed: 1, hides: true };
        let policy = get("HANARE_SHARED_POLICY").unwrap_or_else(|| POLICY.to_owned());
        let prefetch = get("HANARE_SHARED_PREFETCH").unwrap_or_else(|| DEFAULT_PREFETCH.to_owned());
        let refused = |name, value: &String, wanted| JobError::Value { name, value: value.clone(), wanted };
        policy::build(&policy, trial).map_err(|_| refused("HANARE_SHARED_POLICY", &policy, POLICIES_WANTED))?;
        prefetch::build(&prefetch, trial)
            .map_err(|_| refused("HANARE_SHARED_PREFETCH", &prefetch, PREFETCHERS_WANTED))?;
        Ok(Self {
            rank: Rank(rank),
            ranks,
            number: job,
            meet,
            trusts_network: trusts == 1,
            key: get("HANARE_KEY_FILE").filter(|value| !value.is_empty()).map(PathBuf::from),
            launcher: get("HANARE_LAUNCHER").and_then(|pid| pid.parse().ok()),
            protocol: [Protocol::Adaptive, Protocol::Invalidate, Protocol::Update][protocol],
            migrate: home == 1,
            transfer: [Transfer::ZeroCopy, Transfer::Message][transfer],
            bind: bind == 1,
            region_bytes: size(&get, "HANARE_SHARED_BYTES")?
                .map_or(REGION_BYTES, |bytes| bytes.max(4096).next_multiple_of(4096)),
            local_bytes: size(&get, "HANARE_SHARED_LOCAL_BYTES")?,
            elsewhere: elsewhere::from_env(&get)?,
            seal: elsewhere::seal_from_env(&get)?,
            policy,
            prefetch,
            counts: get("HANARE_COUNTS").map(PathBuf::from),
        })
    }
}

type Place = (u16, u16, Option<Meet>, u64);

fn place(get: &impl Fn(&str) -> Option<String>) -> Result<Place, JobError> {
    if let Some(rank) = number(get, "HANARE_RANK", "a rank")? {
        let ranks = count(get, "HANARE_RANKS", "HANARE_RANK")?;
        let meet = match get("HANARE_RANK0") {
            Some(address) => Meet::Address(address),
            None => {
                let folder = get("HANARE_MEET");
                Meet::Folder(folder.ok_or(JobError::Missing { name: "HANARE_MEET", other: "HANARE_RANK" })?.into())
            }
        };
        return within(rank, (ranks, Some(meet), 0), "HANARE_RANK");
    }
    for (name, size, keys) in STARTERS {
        let Some(rank) = number(get, name, "a rank")? else { continue };
        let ranks = count(get, size, name)?;
        let mut key = String::new();
        for name in keys {
            key.extend(get(name).unwrap_or_default().chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }));
            key.push('.');
        }
        let meet = match get("HANARE_RANK0") {
            Some(address) => Meet::Address(address),
            None if is_on_several_hosts(get, name, ranks)? => Meet::Address(address_of_slurm(get, &key)?),
            None => Meet::Folder(folder(get, &key)),
        };
        return within(rank, (ranks, (ranks > 1).then_some(meet), number_of(&key)), name);
    }
    Ok((0, 1, None, 0))
}

fn folder(get: &impl Fn(&str) -> Option<String>, key: &str) -> PathBuf {
    let user = rustix::process::getuid().as_raw();
    let base = get("XDG_RUNTIME_DIR").or_else(|| get("TMPDIR")).unwrap_or_else(|| "/tmp".to_owned());
    PathBuf::from(base).join(format!("hanare-{user}-{key}ranks"))
}

fn is_on_several_hosts(get: &impl Fn(&str) -> Option<String>, starter: &str, ranks: u16) -> Result<bool, JobError> {
    if starter == "SLURM_PROCID" {
        let hosts: Option<u32> = number(get, "SLURM_STEP_NUM_NODES", "a number of hosts")?;
        return Ok(hosts.is_some_and(|hosts| hosts > 1));
    }
    let here: Option<u16> = number(get, "OMPI_COMM_WORLD_LOCAL_SIZE", "a number of ranks")?;
    Ok(here.is_some_and(|here| here < ranks))
}

/// Returns the address of rank 0 in a Slurm step. It is the step's first host, with a port derived from the step's
/// number.
fn address_of_slurm(get: &impl Fn(&str) -> Option<String>, key: &str) -> Result<String, JobError> {
    let hosts = get("SLURM_STEP_NODELIST").ok_or(JobError::NoAddress)?;
    let host = first_host(&hosts).ok_or(JobError::NoAddress)?;
    let number = key.bytes().fold(0_u32, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
    Ok(format!("{host}:{}", PORT_FIRST + number % PORTS))
}

/// Returns the first name in a list of hosts as Slurm writes it: `a`, `a,b` or `a[01-04,7],b`.
fn first_host(hosts: &str) -> Option<String> {
    let name = match hosts.split_once([',', '[']) {
        Some((name, rest)) if hosts.as_bytes().get(name.len()) == Some(&b'[') => {
            let number = rest.split([',', '-', ']']).next()?;
            let tail = rest.split_once(']')?.1.split(',').next()?;
            format!("{name}{number}{tail}")
        }
        Some((name, _)) => name.to_owned(),
        None => hosts.to_owned(),
    };
    (!name.is_empty()).then_some(name)
}

/// Returns a number that differs for different job names (FNV-1a).
fn number_of(key: &str) -> u64 {
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    key.bytes().fold(0xcbf2_9ce4_8422_2325, step)
}

fn within(rank: u16, (ranks, meet, job): (u16, Option<Meet>, u64), name: &'static str) -> Result<Place, JobError> {
    if rank < ranks {
        return Ok((rank, ranks, meet, job));
    }
    Err(JobError::Value { name, value: rank.to_string(), wanted: "below the number of ranks" })
}

fn count(get: &impl Fn(&str) -> Option<String>, name: &'static str, other: &'static str) -> Result<u16, JobError> {
    let wanted = "a number of ranks from 1 to 256";
    let ranks: u16 = number(get, name, wanted)?.ok_or(JobError::Missing { name, other })?;
    if (1..=RANKS_MAX as u16).contains(&ranks) {
        return Ok(ranks);
    }
    Err(JobError::Value { name, value: ranks.to_string(), wanted })
}

fn size(get: &impl Fn(&str) -> Option<String>, name: &'static str) -> Result<Option<u64>, JobError> {
    let wanted = "a size, as 4096, 64M or 1G";
    get(name).map(|value| parse_size(&value).map_err(|_| JobError::Value { name, value, wanted })).transpose()
}

pub(super) fn number<T: std::str::FromStr>(
    get: &impl Fn(&str) -> Option<String>,
    name: &'static str,
    wanted: &'static str,
) -> Result<Option<T>, JobError> {
    get(name).map(|value| value.parse().map_err(|_| JobError::Value { name, value, wanted })).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(vars: &[(&str, &str)]) -> Result<Job, JobError> {
        Job::from_env(|name| vars.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned()))
    }

    #[test]
    fn a_program_started_by_nobody_is_a_rank_on_its_own() {
        let job = of(&[]).expect("nothing is set");
        assert_eq!((job.rank, job.ranks, job.meet), (Rank(0), 1, None));
        assert_eq!((job.protocol, job.transfer, job.migrate), (Protocol::Adaptive, Transfer::ZeroCopy, false));
    }

    #[test]
    fn each_starter_is_understood() {
        let launch = of(&[("HANARE_RANK", "2"), ("HANARE_RANKS", "3"), ("HANARE_MEET", "/x"), ("SLURM_PROCID", "9")]);
        let launch = launch.expect("a launched rank");
        assert_eq!((launch.rank, launch.ranks, launch.meet), (Rank(2), 3, Some(Meet::Folder("/x".into()))));
        let slurm = of(&[
            ("SLURM_PROCID", "1"),
            ("SLURM_STEP_NUM_TASKS", "2"),
            ("SLURM_JOB_ID", "77"),
            ("SLURM_STEP_ID", "0"),
            ("TMPDIR", "/t"),
        ])
        .expect("a rank of srun");
        assert_eq!((slurm.rank, slurm.ranks), (Rank(1), 2));
        let Some(Meet::Folder(path)) = slurm.meet else { panic!("one host") };
        assert!(path.starts_with("/t") && path.to_string_lossy().ends_with("-77.0.ranks"));
        let mpi = of(&[("OMPI_COMM_WORLD_RANK", "1"), ("OMPI_COMM_WORLD_SIZE", "4"), ("PMIX_NAMESPACE", "a/b")]);
        let Some(Meet::Folder(path)) = mpi.expect("a rank of mpirun").meet else { panic!("one host") };
        assert!(path.to_string_lossy().contains("a-b"));
    }

    #[test]
    fn ranks_of_several_hosts_meet_at_rank_0_by_messages() {
        let step = [("SLURM_PROCID", "1"), ("SLURM_STEP_NUM_TASKS", "2"), ("SLURM_STEP_NUM_NODES", "2")];
        let slurm = of(&[&step[..], &[("SLURM_STEP_NODELIST", "n[07-09],x")]].concat()).expect("a rank of srun");
        let Some(Meet::Address(address)) = slurm.meet else { panic!("several hosts") };
        let port: u32 = address.strip_prefix("n07:").expect("the first host").parse().expect("a port");
        assert!((PORT_FIRST..PORT_FIRST + PORTS).contains(&port));
        assert_eq!(slurm.transfer, Transfer::Message);
        let given = of(&[&step[..], &[("HANARE_RANK0", "h:1")]].concat()).expect("a given address");
        assert_eq!(given.meet, Some(Meet::Address("h:1".to_owned())));
        for (hosts, first) in [("a", "a"), ("a,b", "a"), ("a[3,5]", "a3"), ("a[10-12]-x,b[1-2]", "a10-x")] {
            assert_eq!(first_host(hosts).as_deref(), Some(first));
        }
    }

    #[test]
    fn what_cannot_be_is_refused_with_its_name() {
        for (vars, part) in [
            (&[("HANARE_RANK", "x")][..], "HANARE_RANK=x"),
            (&[("HANARE_RANK", "0")], "HANARE_RANKS is not set"),
            (&[("HANARE_RANK", "3"), ("HANARE_RANKS", "3"), ("HANARE_MEET", "/x")], "HANARE_RANK=3"),
            (&[("HANARE_RANK", "0"), ("HANARE_RANKS", "257"), ("HANARE_MEET", "/x")], "HANARE_RANKS=257"),
            (&[("HANARE_PROTOCOL", "magic")], "HANARE_PROTOCOL=magic"),
            (&[("HANARE_BIND", "1")], "HANARE_BIND=1 is not yes or no"),
            (&[("SLURM_PROCID", "0"), ("SLURM_STEP_NUM_TASKS", "2"), ("SLURM_STEP_NUM_NODES", "2")], "HANARE_RANK0"),
            (
                &[("OMPI_COMM_WORLD_RANK", "0"), ("OMPI_COMM_WORLD_SIZE", "2"), ("OMPI_COMM_WORLD_LOCAL_SIZE", "1")],
                "HANARE_RANK0",
            ),
            (
                &[
                    ("HANARE_RANK", "0"),
                    ("HANARE_RANKS", "2"),
                    ("HANARE_RANK0", "h:1"),
                    ("HANARE_TRANSFER", "zero-copy"),
                ],
                "HANARE_TRANSFER=message",
            ),
        ] {
            let error = of(vars).expect_err(part).to_string();
            assert!(error.contains(part), "{error}");
        }
    }
}
