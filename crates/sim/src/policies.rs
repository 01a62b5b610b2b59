//! Runs any policies over a reference string in any sizes, in parallel on all processors.

use std::fmt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use hanare_paging::policy::{self, POLICIES, SpecError};
use hanare_paging::{Space, limits};

use crate::machine::{self, Figures, NoVictim, Visible};
use crate::opt;
use crate::string::RefString;

/// Name of OPT among the policies.
pub const OPT: &str = "opt";
/// The second baseline of the ratios: the policy of paper 1 without parameters. It sees no references.
const SIMPLE: &str = "simple";

/// Smallest local memory that can be simulated, in pages. Textbooks show anomalies with three. A running program needs
/// [`limits::BUDGET_PAGES_MIN`].
const PAGES_MIN: u32 = 2;

/// A size of local memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Local {
    /// Percentage of the number of distinct pages referenced.
    Percent(u8),
    /// A number of pages.
    Pages(u32),
}

impl Local {
    /// Parses the sizes of a list such as `25%,50%,100p`.
    ///
    /// # Errors
    /// A part is neither a percentage nor a number of pages. The message names the part.
    pub fn parse_list(text: &str) -> Result<Vec<Self>, SimError> {
        text.split(',').map(|part| Self::parse(part.trim()).ok_or_else(|| SimError::Local(part.into()))).collect()
    }

    fn parse(text: &str) -> Option<Self> {
        if let Some(percent) = text.strip_suffix('%') {
            return percent.parse().ok().filter(|percent| (1..=100).contains(percent)).map(Self::Percent);
        }
        let pages = text.strip_suffix('p')?.parse().ok()?;
        (PAGES_MIN..=limits::UNITS_MAX).contains(&pages).then_some(Self::Pages(pages))
    }

    /// Returns the size in pages. It is at least [`PAGES_MIN`].
    #[must_use]
    pub fn pages(self, distinct: u32) -> u32 {
        match self {
            Self::Pages(pages) => pages,
            Self::Percent(percent) => (u64::from(distinct) * u64::from(percent) / 100) as u32,
        }
        .max(PAGES_MIN)
    }
}

/// The settings of a simulation.
#[derive(Clone, Debug)]
pub struct Job {
    /// The policies, as users write them. [`OPT`] is allowed, too.
    pub policies: Vec<String>,
    /// Sizes of local memory.
    pub locals: Vec<Local>,
    /// Which references policies see.
    pub visible: Visible,
    /// Seed of the random numbers that policies draw.
    pub seed: u64,
    /// Number of units (pages) in one block, as in the recorded run; 1 for no blocks.
    pub block_units: u32,
}

/// The result of one policy in one size.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// The policy.
    pub policy: String,
    /// Size of local memory, in percent of the distinct pages referenced.
    pub local_percent: f64,
    /// Size of local memory, in pages.
    pub local_pages: u32,
    /// The costs of the run.
    pub figures: Figures,
    /// Misses divided by the misses of Simple.
    pub ratio_to_simple: f64,
    /// Misses divided by the misses of OPT.
    pub ratio_to_opt: f64,
}

/// One run of one policy in one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cell {
    policy: usize,
    local: usize,
}

/// Why a simulation has no result.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SimError {
    /// The text is not a size of local memory.
    Local(String),
    /// A policy is not known.
    Unknown(String),
    /// A policy cannot be built.
    Policy(SpecError),
    /// A policy broke its contract.
    NoVictim(String, NoVictim),
    /// The string references no page.
    NoReferences,
}

impl fmt::Display for SimError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Local(text) => write!(
                f,
                "'{text}' is no size of local memory; give percentages of the pages referenced or numbers of pages, such as 25%,50%,1000p"
            ),
            Self::Unknown(name) => {
                write!(f, "no replacement policy is called '{name}'; there are {}", all_policies().join(", "))
            }
            Self::Policy(error) => error.fmt(f),
            Self::NoVictim(policy, error) => write!(f, "policy {policy} cannot be simulated: {error}"),
            Self::NoReferences => f.write_str("no page is referenced, so there is nothing to simulate"),
        }
    }
}

impl std::error::Error for SimError {}

/// Splits a list of policies such as `lru,2q:in=25,out=50;opt`. Behind a colon, commas separate parameters, too.
#[must_use]
pub fn parse_policies(text: &str) -> Vec<String> {
    let mut policies: Vec<String> = Vec::new();
    for group in text.split(';') {
        for (index, part) in group.split(',').map(str::trim).enumerate() {
            match policies.last_mut().filter(|_| index > 0 && part.contains('=') && !part.contains(':')) {
                Some(policy) => *policy += &format!(",{part}"),
                None => policies.push(part.to_owned()),
            }
        }
    }
    policies
}

/// Returns the names of all policies, and [`OPT`].
#[must_use]
pub fn all_policies() -> Vec<String> {
    let live = POLICIES.iter().map(|info| info.name).filter(|name| *name != OPT);
    live.chain([OPT]).map(ToOwned::to_owned).collect()
}

/// Checks that these policies can be built.
///
/// # Errors
/// A policy cannot be built. The message lists the valid policies.
pub fn check_policies(policies: &[String]) -> Result<(), SimError> {
    let space = Space { units: 64, block_units: 1, seed: 0, hides: true };
    for text in policies.iter().filter(|text| *text != OPT) {
        let name = text.split(':').next().unwrap_or_default();
        if !POLICIES.iter().any(|info| info.name == name) {
            return Err(SimError::Unknown(name.to_owned()));
        }
        policy::build(text, space).map_err(SimError::Policy)?;
    }
    Ok(())
}

/// Runs every policy in every size. Now and then calls `progress` with the number of steps done and the total. The rows
/// are in the order of the job, with all policies of one size together.
///
/// # Errors
/// A [`SimError`] says why there is no result.
pub fn simulate(string: &RefString, job: &Job, progress: &(dyn Fn(u64, u64) + Sync)) -> Result<Vec<Row>, SimError> {
    check_policies(&job.policies)?;
    if string.references() == 0 {
        return Err(SimError::NoReferences);
    }
    // The ratios need these two policies, even if they are not shown.
    let mut policies = job.policies.clone();
    for name in [SIMPLE, OPT] {
        if !policies.iter().any(|policy| policy == name) {
            policies.push(name.to_owned());
        }
    }
    let sizes: Vec<u32> = job.locals.iter().map(|local| local.pages(string.distinct())).collect();
    let cells: Vec<Cell> =
        (0..sizes.len()).flat_map(|local| (0..policies.len()).map(move |policy| Cell { policy, local })).collect();
    let run = Run { string, job, policies: &policies, sizes: &sizes, cells: &cells };
    let figures = run.all(progress)?;
    Ok(run.rows(&figures))
}

struct Run<'a> {
    string: &'a RefString,
    job: &'a Job,
    policies: &'a [String],
    sizes: &'a [u32],
    cells: &'a [Cell],
}

impl Run<'_> {
    fn all(&self, progress: &(dyn Fn(u64, u64) + Sync)) -> Result<Vec<Figures>, SimError> {
        let total = self.string.len() as u64 * self.cells.len() as u64;
        let (next, done) = (AtomicUsize::new(0), AtomicU64::new(0));
        let results = Mutex::new(vec![Ok(Figures::default()); self.cells.len()]);
        let report = |steps: u64| progress(done.fetch_add(steps, Relaxed) + steps, total);
        let work = || {
            loop {
                let index = next.fetch_add(1, Relaxed);
                let Some(&cell) = self.cells.get(index) else { return };
                let result = self.one(cell, &report);
                results.lock().unwrap_or_else(std::sync::PoisonError::into_inner)[index] = result;
            }
        };
        let workers = std::thread::available_parallelism().map_or(1, usize::from).min(self.cells.len());
        std::thread::scope(|scope| {
            for _ in 1..workers {
                scope.spawn(work);
            }
            work();
        });
        results.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner).into_iter().collect()
    }

    fn one(&self, cell: Cell, report: &dyn Fn(u64)) -> Result<Figures, SimError> {
        let (name, pages) = (&self.policies[cell.policy], self.sizes[cell.local]);
        if name == OPT {
            let figures = opt::run(self.string, pages);
            report(self.string.len() as u64);
            return Ok(figures);
        }
        let block_units = self.job.block_units.max(1);
        let units = self.string.pages().next_multiple_of(block_units);
        let space = Space { units, block_units, seed: self.job.seed, hides: true };
        let mut policy = policy::build(name, space).map_err(SimError::Policy)?;
        machine::run(self.string, &mut *policy, pages, self.job.visible, report)
            .map_err(|error| SimError::NoVictim(name.clone(), error))
    }

    fn rows(&self, figures: &[Figures]) -> Vec<Row> {
        let misses = |local: usize, name: &str| {
            let at = self.cells.iter().position(|cell| cell.local == local && self.policies[cell.policy] == name);
            at.map_or(f64::NAN, |at| figures[at].misses as f64)
        };
        let shown = self.cells.iter().zip(figures).filter(|(cell, _)| cell.policy < self.job.policies.len());
        let row = |(cell, &figures): (&Cell, &Figures)| Row {
            policy: self.policies[cell.policy].clone(),
            local_percent: 100.0 * f64::from(self.sizes[cell.local]) / f64::from(self.string.distinct()),
            local_pages: self.sizes[cell.local],
            figures,
            ratio_to_simple: figures.misses as f64 / misses(cell.local, SIMPLE),
            ratio_to_opt: figures.misses as f64 / misses(cell.local, OPT),
        };
        shown.map(row).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::string::Step;

    #[test]
    fn lists_are_read_with_parameters() {
        assert_eq!(parse_policies("lru,2q:in=25,out=50;clock, opt"), ["lru", "2q:in=25,out=50", "clock", "opt"]);
        assert_eq!(parse_policies("a:x=1,b:y=2;c=3"), ["a:x=1", "b:y=2", "c=3"]);
        let sizes = Local::parse_list("25%, 100p").unwrap();
        assert_eq!(sizes, [Local::Percent(25), Local::Pages(100)]);
        assert_eq!(sizes.iter().map(|local| local.pages(7)).collect::<Vec<_>>(), [2, 100]);
        for text in ["", "0%", "101%", "25", "1p", "-5%", "99999999999p", "25%,,50%"] {
            assert!(Local::parse_list(text).is_err(), "{text}");
        }
    }

    #[test]
    fn rows_come_in_order_with_their_ratios_and_progress_ends_at_the_total() {
        let string = RefString::new((0..3000).map(|i| Step::Read(i % 10)));
        let policies = vec!["lru".to_owned(), "opt".to_owned()];
        let locals = vec![Local::Percent(50), Local::Percent(100)];
        let job = Job { policies, locals, visible: Visible::All, seed: 1, block_units: 1 };
        let last = AtomicU64::new(0);
        let rows = simulate(&string, &job, &|done, total| {
            last.fetch_max(done, Relaxed);
            assert!(done <= total);
        });
        let rows = rows.unwrap();
        // The program loops over ten pages in a memory of five. LRU always misses. OPT misses six of nine references
        // once the memory is full.
        assert_eq!(rows.iter().map(|row| row.policy.as_str()).collect::<Vec<_>>(), ["lru", "opt", "lru", "opt"]);
        assert_eq!((rows[0].figures.misses, rows[0].local_pages), (3000, 5));
        assert!((1660..=1700).contains(&rows[1].figures.misses), "{:?}", rows[1]);
        assert!((rows[0].ratio_to_opt - 3000.0 / rows[1].figures.misses as f64).abs() < 1e-9);
        assert_eq!((rows[2].figures.misses, rows[3].ratio_to_opt, rows[2].ratio_to_simple), (10, 1.0, 1.0));
        // Simple was run, too, because the ratio needs it. So three policies ran in two sizes.
        assert_eq!(last.into_inner(), 3000 * 6);
        let empty = RefString::default();
        assert_eq!(simulate(&empty, &job, &|_, _| {}), Err(SimError::NoReferences));
    }

    #[test]
    fn an_unknown_policy_is_answered_with_the_valid_ones() {
        let error = check_policies(&["best".to_owned()]).unwrap_err().to_string();
        assert!(error.contains("'best'") && error.contains("fifo") && error.ends_with("opt"), "{error}");
        let error = check_policies(&["fifo:depth=1".to_owned()]).unwrap_err().to_string();
        assert!(error.contains("'depth'") && error.contains("it takes none"), "{error}");
    }
}
