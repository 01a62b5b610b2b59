//! Tests the programs that share memory, and the ways to start them. Every workload must give its serial result bit for
//! bit, for all numbers of ranks, protocols and transfers. The same must hold under srun and mpirun.

use std::time::Duration;

use hanare_tests::{Outcome, Place, Slurm, built, free_ports, installed};

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

#[test]
fn ranks_of_mpirun_meet_on_one_host_and_by_tcp() {
    if !installed("mpirun", "openmpi-bin") {
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

#[test]
fn ranks_of_srun_meet_across_hosts() {
    let place = Place::new();
    let Some(slurm) = Slurm::start(&place) else { return };
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
