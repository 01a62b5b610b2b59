//! A Slurm cluster on this machine, for tests of what runs as a job.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::{Place, Running, free_ports, installed, until};

/// Number of hosts of the cluster.
const HOSTS: usize = 3;
/// Megabytes that each host has for jobs.
const MEMORY_MB: u32 = 512;
/// Time between two questions to the controller.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Time that the jobs of a failed test have to end. Half a minute after SIGTERM, Slurm kills them.
const END: Duration = Duration::from_secs(45);

/// A Slurm cluster with a controller and three hosts. All hosts are this machine under different names. When this value is
/// dropped, the jobs are cancelled and the daemons killed.
pub struct Slurm<'a> {
    place: &'a Place,
    config: PathBuf,
    _daemons: Vec<Running>,
}

/// How a job ended.
#[derive(Debug, PartialEq, Eq)]
pub struct Ended {
    /// Slurm's word, such as `COMPLETED`.
    pub state: String,
    /// The exit code, and the signal that ended the job's script, or 0: `3:0`.
    pub code: String,
}

impl<'a> Slurm<'a> {
    /// Starts the daemons and waits until the hosts are ready. If Slurm is not installed, prints a line.
    pub fn start(place: &'a Place) -> Option<Self> {
        if !["srun", "slurmctld", "slurmd"].into_iter().all(|program| installed(program, "slurm-wlm")) {
            return None;
        }
        let config = place.file("slurm.conf", configuration(place));
        let daemon = |program: &str, args: &[&str]| {
            place.start(place.command(program).arg("-D").arg("-f").arg(&config).args(args))
        };
        let mut daemons = vec![daemon("slurmctld", &[])];
        daemons.extend((0..HOSTS).map(|node| daemon("slurmd", &["-N", &format!("n{node}")])));
        let slurm = Self { place, config, _daemons: daemons };
        let ready = format!("{HOSTS} idle");
        until("the hosts are idle", || {
            slurm.says("sinfo", &["--noheader", "--format", "%D %t"]).lines().any(|line| line.trim() == ready)
        });
        Some(slurm)
    }

    /// Makes a command for a client of this cluster.
    pub fn command(&self, program: &str) -> Command {
        let mut command = self.place.command(program);
        command.env("SLURM_CONF", &self.config);
        command
    }

    /// Submits a script with flags and returns the job's number.
    pub fn submit(&self, script: &Path, flags: &[&str]) -> String {
        let outcome = self.place.run(self.command("sbatch").arg("--parsable").args(flags).arg(script));
        outcome.assert_well("sbatch");
        outcome.text().trim().to_owned()
    }

    /// Waits until a job has ended on all its hosts.
    pub fn ended(&self, job: &str) -> Ended {
        let mut ended = None;
        until("the job ends", || {
            let told = self.says("scontrol", &["show", "job", "--oneliner", job]);
            let word = |name: &str| {
                told.split_whitespace().find_map(|word| word.strip_prefix(name)).unwrap_or_default().to_owned()
            };
            let (state, code) = (word("JobState="), word("ExitCode="));
            let goes_on = ["", "PENDING", "CONFIGURING", "RUNNING", "COMPLETING"].contains(&state.as_str());
            ended = (!goes_on).then_some(Ended { state, code });
            ended.is_some()
        });
        until("the job has left its hosts", || self.says("squeue", &["--noheader", "--jobs", job]).is_empty());
        ended.expect("the loop ends with it")
    }

    /// Returns what a client says on standard output, after a pause. So a loop that asks leaves the CPUs to the jobs.
    fn says(&self, program: &str, args: &[&str]) -> String {
        std::thread::sleep(LOOK_EVERY);
        let output = self.command(program).args(args).output().expect("a client of Slurm");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

impl Drop for Slurm<'_> {
    fn drop(&mut self) {
        let began = Instant::now();
        let jobs = || self.command("squeue").args(["--noheader", "--format", "%A"]).output();
        while let Ok(left) = jobs()
            && !left.stdout.is_empty()
            && began.elapsed() < END
        {
            let numbers = String::from_utf8_lossy(&left.stdout).into_owned();
            // Ignored: the loop looks again, and is bounded.
            let _ = self.command("scancel").args(numbers.split_whitespace()).output();
            std::thread::sleep(LOOK_EVERY);
        }
    }
}

/// Makes the folders of the daemons and returns the cluster's configuration.
fn configuration(place: &Place) -> String {
    let [control, ports @ ..] = free_ports::<{ HOSTS + 1 }>();
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let host = name.split('.').next().expect("a name");
    let user = Command::new("id").arg("-un").output().expect("id runs");
    let user = String::from_utf8_lossy(&user.stdout).trim().to_owned();
    let at = place.path("slurm").display().to_string();
    std::fs::create_dir_all(place.path("slurm/state")).expect("a directory");
    let mut config = format!(
        "ClusterName=hanare\nSlurmctldHost={host}(127.0.0.1)\nAuthType=auth/none\nCredType=cred/none\n\
         SlurmUser={user}\nSlurmdUser={user}\nSlurmctldPort={control}\nSlurmctldPidFile={at}/ctld.pid\n\
         SlurmdPidFile={at}/%n.pid\nSlurmdSpoolDir={at}/%n\nStateSaveLocation={at}/state\n\
         SlurmctldLogFile={at}/ctld.log\nSlurmdLogFile={at}/%n.log\nProctrackType=proctrack/pgid\n\
         TaskPlugin=task/none\nSelectType=select/linear\nMpiDefault=none\nReturnToService=2\n\
         PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP\n"
    );
    for (node, port) in ports.iter().enumerate() {
        std::fs::create_dir(place.path(&format!("slurm/n{node}"))).expect("a directory");
        config += &format!(
            "NodeName=n{node} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=1 RealMemory={MEMORY_MB}\n"
        );
    }
    config
}
