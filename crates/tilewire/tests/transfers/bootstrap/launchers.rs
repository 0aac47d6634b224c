//! The variables of each launcher, and the errors when it does not set enough. No test reads the real environment.

use std::time::Duration;
use tilewire::transport::{Launcher, Placement, Rank, WorldError};

const SECRET: &str = "TILEWIRE_SECRET=0123456789abcdef";

/// `NAME=value` words, separated by spaces.
fn placed(words: &str) -> Result<Placement, WorldError> {
    let value = |name: &str| words.split(' ').find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
    Placement::from_vars(&|name| value(name).map(String::from))
}

#[test]
fn every_launcher_is_understood() {
    use Launcher::*;
    for (words, launcher, rank, size, local, address, hosts) in [
        (
            "TILEWIRE_RANK=2 TILEWIRE_WORLD_SIZE=4 TILEWIRE_LOCAL_RANK=2 TILEWIRE_STORE=127.0.0.1:4000",
            Tilewire,
            2,
            4,
            Some(2),
            "127.0.0.1:4000",
            false,
        ),
        (
            "TILEWIRE_RANK=0 TILEWIRE_WORLD_SIZE=2 TILEWIRE_STORE=a:4000 TILEWIRE_STORE_HOST=rank0",
            Tilewire,
            0,
            2,
            None,
            "a:4000",
            true,
        ),
        (
            "RANK=3 WORLD_SIZE=8 LOCAL_RANK=1 MASTER_ADDR=head MASTER_PORT=29500",
            Torchrun,
            3,
            8,
            Some(1),
            "head:29501",
            true,
        ),
        ("RANK=0 WORLD_SIZE=2 MASTER_ADDR=fe80::1 MASTER_PORT=1", Torchrun, 0, 2, None, "[fe80::1]:2", true),
        (
            "RANK=0 WORLD_SIZE=2 MASTER_ADDR=head MASTER_PORT=29500 TILEWIRE_STORE=other:7",
            Torchrun,
            0,
            2,
            None,
            "other:7",
            true,
        ),
        (
            "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=0 TILEWIRE_STORE=h:7",
            OpenMpi,
            1,
            2,
            Some(0),
            "h:7",
            true,
        ),
        ("PMI_RANK=1 PMI_SIZE=2 MPI_LOCALRANKID=1 TILEWIRE_STORE=h:7", Pmi, 1, 2, Some(1), "h:7", true),
        (
            "SLURM_PROCID=5 SLURM_NTASKS=6 SLURM_LOCALID=1 SLURM_NODELIST=node[03-05,9],b SLURM_JOB_ID=1000",
            Slurm,
            5,
            6,
            Some(1),
            "node03:16000",
            true,
        ),
        (
            "SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=2 SLURM_NTASKS=6 SLURM_STEP_NODELIST=b SLURM_JOB_NODELIST=a,b \
             SLURM_STEP_RESV_PORTS=12000-12003 SLURM_JOB_ID=1",
            Slurm,
            0,
            2,
            None,
            "b:12000",
            true,
        ),
        (
            "SLURM_PROCID=0 SLURM_NTASKS=2 SLURM_NODELIST=rack[1-2]node[07,9]x SLURM_JOB_ID=0 SLURM_STEP_ID=2",
            Slurm,
            0,
            2,
            None,
            "rack1node07x:15002",
            true,
        ),
        // The inner launcher counts, and an empty variable counts as unset.
        (
            "SLURM_PROCID=0 SLURM_NTASKS=1 RANK=1 WORLD_SIZE=2 MASTER_ADDR=h MASTER_PORT=1 TILEWIRE_RANK=",
            Torchrun,
            1,
            2,
            None,
            "h:2",
            true,
        ),
    ] {
        let placement = placed(&format!("{words} {SECRET}")).unwrap_or_else(|error| panic!("{words}: {error}"));
        assert_eq!(placement.launcher, launcher, "{words}");
        assert_eq!((placement.rank, placement.world_size), (Rank::new(rank), size), "{words}");
        assert_eq!(placement.local_rank, local, "{words}");
        let store = placement.store.unwrap();
        assert_eq!((store.address.as_str(), store.hosted_by_rank_0), (address, hosts), "{words}");
        assert_eq!(store.secret.expose(), "0123456789abcdef", "{words}");
        assert_eq!(placement.deadline, Some(Duration::from_secs(30)));
    }
}

#[test]
fn what_is_missing_or_wrong_is_named_with_what_to_do() {
    for (words, parts) in [
        ("", &["tilewire launch -n N", "torchrun", "mpirun", "srun", "World::threads"][..]),
        ("RANK=0", &["no launcher"]),
        ("TILEWIRE_RANK=0", &["set TILEWIRE_WORLD_SIZE"]),
        ("TILEWIRE_RANK=0 TILEWIRE_WORLD_SIZE=2", &["set TILEWIRE_STORE to host:port"]),
        ("TILEWIRE_RANK=0 TILEWIRE_WORLD_SIZE=2 TILEWIRE_STORE=h:1", &["set TILEWIRE_SECRET", "/dev/urandom"]),
        ("RANK=0 WORLD_SIZE=2", &["torchrun", "set TILEWIRE_STORE"]),
        ("RANK=0 WORLD_SIZE=2 MASTER_ADDR=h MASTER_PORT=1", &["torchrun", "set TILEWIRE_SECRET", "every host"]),
        ("RANK=0 WORLD_SIZE=2 MASTER_ADDR=h MASTER_PORT=65535", &["MASTER_PORT is '65535'", "TILEWIRE_STORE"]),
        ("RANK=0 WORLD_SIZE=2 MASTER_ADDR=h MASTER_PORT=x", &["MASTER_PORT is 'x'"]),
        ("RANK=2 WORLD_SIZE=2", &["RANK is '2'", "below"]),
        ("RANK=-1 WORLD_SIZE=2", &["RANK is '-1'", "whole number"]),
        ("RANK=0 WORLD_SIZE=99999999999", &["WORLD_SIZE is '99999999999'"]),
        ("OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=2", &["set TILEWIRE_STORE", "mpirun -x TILEWIRE_STORE"]),
        ("PMI_RANK=0 PMI_SIZE=2 TILEWIRE_STORE=h:1", &["set TILEWIRE_SECRET", "mpiexec -genvlist"]),
        ("SLURM_PROCID=0 SLURM_NTASKS=2 SLURM_NODELIST=[ SLURM_JOB_ID=1", &["SLURM_NODELIST is '['", "TILEWIRE_STORE"]),
        (
            "SLURM_PROCID=0 SLURM_NTASKS=2 SLURM_NODELIST=a SLURM_JOB_ID=1 SLURM_STEP_RESV_PORTS=any",
            &["SLURM_STEP_RESV_PORTS is 'any'", "ports"],
        ),
        (
            "SLURM_PROCID=0 SLURM_NTASKS=2 SLURM_NODELIST=a SLURM_JOB_ID=1 SLURM_STEP_ID=first",
            &["SLURM_STEP_ID is 'first'", "whole number"],
        ),
        (
            "TILEWIRE_RANK=0 TILEWIRE_WORLD_SIZE=2 TILEWIRE_STORE=h:1 TILEWIRE_SECRET=0123456789abcdef TILEWIRE_STORE_HOST=rank1",
            &["TILEWIRE_STORE_HOST is 'rank1'", "rank0"],
        ),
        ("SLURM_PROCID=0 SLURM_NTASKS=2 SLURM_NODELIST=a", &["set TILEWIRE_STORE"]),
        ("SLURM_PROCID=0", &["set SLURM_STEP_NUM_TASKS"]),
        ("PMI_RANK=0 PMI_SIZE=2 TILEWIRE_STORE=nowhere", &["TILEWIRE_STORE is 'nowhere'", "host:port"]),
        ("PMI_RANK=0 PMI_SIZE=2 TILEWIRE_STORE=h:0", &["TILEWIRE_STORE is 'h:0'"]),
        ("PMI_RANK=0 PMI_SIZE=2 TILEWIRE_STORE=h:1 TILEWIRE_SECRET=short", &["16 or more"]),
        ("PMI_RANK=0 PMI_SIZE=1 TILEWIRE_DEADLINE=soon", &["TILEWIRE_DEADLINE is 'soon'"]),
    ] {
        let error = placed(words).expect_err(words).to_string();
        for part in parts {
            assert!(error.contains(part), "{words}: no '{part}' in: {error}");
        }
    }
}

#[test]
fn a_world_of_one_needs_no_store() {
    let placement = placed("OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=1 TILEWIRE_DEADLINE=off").unwrap();
    assert!(placement.store.is_none() && placement.deadline.is_none());
}
