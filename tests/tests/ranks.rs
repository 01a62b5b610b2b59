//! Tests the programs that share memory, and the ways to start them. Every workload must give its serial result bit for
//! bit, for all numbers of ranks, protocols and transfers. The same must hold under srun and mpirun.

use std::net::TcpListener;
use std::process::Command;
use std::time::Duration;

use hanare_tests::{Outcome, Place, Running, built, until};

const PROTOCOLS: [&str; 3] = ["invalidate", "update", "adaptive"];
const LIMIT: Duration = Duration::from_secs(120);
/// The workloads with their arguments. They are small enough for 32 ranks on few CPUs. They are large enough that some
/// pages have several writers.
const WORKLOADS: [&[&str]; 5] = [
    &["lu", "-n", "256"],
    &["lu", "-n", "96", "-b", "16", "--home", "one"],
    &["matmul", "-n", "100"],
    &["histogram", "-n", "50000"],
    &["hash", "-n", "60"],
];

fn launch(place: &Place, ranks: u32, flags: &[&str], program: &[&str]) -> Outcome {
    let mut command = place.command(built().hanare());
    command.arg("launch").args(["-n", &ranks.to_string()]).args(flags).arg("--");
    command.arg(built().workload(program[0])).args(&program[1..]).arg("--verify");
    place.start(&mut command).finish(LIMIT)
}

fn check(outcome: &Outcome, case: &str) {
    assert!(outcome.code == Some(0) && outcome.stderr.contains(": verified\n"), "{case}: {outcome:?}");
}

#[test]
fn every_workload_gives_its_serial_result() {
    let place = Place::new();
    for program in WORKLOADS {
        for protocol in PROTOCOLS {
            for transfer in ["message", "zero-copy"] {
                for ranks in [1, 2, 3, 4, 8] {
                    let outcome = launch(&place, ranks, &["--protocol", protocol, "--transfer", transfer], program);
                    check(&outcome, &format!("{program:?}, {ranks} ranks, {protocol}, {transfer}"));
                }
            }
        }
    }
    place.assert_nothing_left();
}

#[test]
fn every_workload_gives_its_serial_result_on_many_ranks_and_with_homes_that_move() {
    let place = Place::new();
    for program in WORKLOADS {
        check(&launch(&place, 32, &[], program), &format!("{program:?}, 32 ranks"));
        for protocol in PROTOCOLS {
            let outcome = launch(&place, 3, &["--protocol", protocol, "--home", "migrate"], program);
            check(&outcome, &format!("{program:?}, {protocol}, homes that move"));
        }
    }
    place.assert_nothing_left();
}

/// Whether a program is installed. If it is not, prints a line.
fn is_installed(program: &str, package: &str) -> bool {
    let found = Command::new(program).arg("-V").output().is_ok();
    if !found {
        println!("skipped: there is no {program}; install {package}");
    }
    found
}

/// Returns different ports that are free at the time of the call.
fn free_ports<const N: usize>() -> [u16; N] {
    let listeners: [TcpListener; N] = std::array::from_fn(|_| TcpListener::bind("127.0.0.1:0").expect("a free port"));
    listeners.map(|listener| listener.local_addr().expect("its address").port())
}

#[test]
fn ranks_of_mpirun_meet_on_one_host_and_by_tcp() {
    if !is_installed("mpirun", "openmpi-bin") {
        return;
    }
    let place = Place::new();
    for by_tcp in [false, true] {
        let mut command = place.command("mpirun");
        command.args(["--allow-run-as-root", "--oversubscribe", "-n", "3"]);
        if by_tcp {
            let [port] = free_ports();
            command.args(["-x", &format!("HANARE_RANK0=127.0.0.1:{port}")]);
        }
        command.arg(built().workload("laplace")).args(["-i", "10", "--verify"]);
        let outcome = place.start(&mut command).finish(LIMIT);
        check(&outcome, &format!("mpirun, by TCP: {by_tcp}"));
    }
}

/// A Slurm cluster with a controller and three hosts. All hosts are this machine under different names.
struct Slurm<'a> {
    place: &'a Place,
    config: std::path::PathBuf,
    _daemons: Vec<Running>,
}

impl<'a> Slurm<'a> {
    fn start(place: &'a Place) -> Self {
        let [control, ports @ ..] = free_ports::<4>();
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
            config += &format!("NodeName=n{node} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=1\n");
        }
        let config = place.file("slurm.conf", config);
        let daemon = |program: &str, args: &[&str]| {
            place.start(place.command(program).arg("-D").arg("-f").arg(&config).args(args))
        };
        let mut daemons = vec![daemon("slurmctld", &[])];
        daemons.extend((0..3).map(|node| daemon("slurmd", &["-N", &format!("n{node}")])));
        let slurm = Self { place, config, _daemons: daemons };
        until("three hosts are idle", || {
            let outcome = place.run(slurm.command("sinfo").args(["--noheader", "--format", "%D %t"]));
            outcome.text().lines().any(|line| line.trim() == "3 idle")
        });
        slurm
    }

    fn command(&self, program: &str) -> Command {
        let mut command = self.place.command(program);
        command.env("SLURM_CONF", &self.config);
        command
    }
}

#[test]
fn ranks_of_srun_meet_across_hosts() {
    if !is_installed("srun", "slurm-wlm") || !is_installed("slurmctld", "slurm-wlm") {
        return;
    }
    let place = Place::new();
    let slurm = Slurm::start(&place);
    let [port] = free_ports();
    let mut command = slurm.command("srun");
    command.env("HANARE_RANK0", format!("127.0.0.1:{port}")).args(["-N", "3", "-n", "3"]);
    command.arg(built().workload("laplace")).args(["-i", "10", "--verify"]);
    check(&place.start(&mut command).finish(LIMIT), "srun");
    // Only Slurm knows the hosts' names, and the resolver does not. So every rank must print the name of the host that
    // it cannot find.
    let mut command = slurm.command("srun");
    command.args(["-N", "3", "-n", "3"]).arg(built().workload("laplace"));
    let outcome = place.start(&mut command).finish(LIMIT);
    assert_eq!(outcome.code, Some(125), "{outcome:?}");
    assert_eq!(outcome.stderr.matches("hanare: cannot meet at n0:").count(), 3, "{outcome:?}");
}
