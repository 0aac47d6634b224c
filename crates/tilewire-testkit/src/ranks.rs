//! Runs a body in every rank of a world. Ranks are threads, or processes that meet at a store in the parent.

use crate::job::{Job, Member};
use std::sync::atomic::AtomicU64;
use std::time::Duration;
use tilewire::Memory;
use tilewire::transport::{Placement, Rank, RankError, Secret, StoreServer, World};

pub type Body = fn(&World) -> Result<(), RankError>;

pub fn in_threads(ranks: usize, body: Body) {
    World::threads(ranks).deadline(Duration::from_secs(20)).run(|world| body(&world)).unwrap();
}

/// Runs the test of this name again in `ranks` processes, and `body` in each.
pub fn in_processes(test: &str, ranks: usize, body: Body) {
    in_worlds(test, [ranks], body);
}

/// Does the same in worlds of these numbers of processes, one after the other. With `TILEWIRE_SENDRECV=full` tests do
/// more, and have more time.
pub fn in_worlds(test: &str, ranks: impl IntoIterator<Item = usize>, body: Body) {
    let full = std::env::var("TILEWIRE_SENDRECV").is_ok_and(|value| value == "full");
    let deadline = Duration::from_secs(if full { 600 } else { 10 });
    if !is_member(deadline, body) {
        ranks.into_iter().for_each(|ranks| run_processes(test, ranks, deadline));
    }
}

/// As [`in_processes`], where a wait may last as long as `deadline`.
pub fn in_processes_within(test: &str, ranks: usize, deadline: Duration, body: Body) {
    if !is_member(deadline, body) {
        run_processes(test, ranks, deadline);
    }
}

/// True in a process that a test has started: it has run the body, and reported.
fn is_member(deadline: Duration, body: Body) -> bool {
    let Some(mut member) = Member::of_this_process() else { return false };
    let world = join_within(&mut member, &format!("{}s", deadline.as_secs()));
    let result = body(&world).map_err(|error| error.to_string());
    member.report(format!("{result:?}"));
    true
}

fn run_processes(test: &str, ranks: usize, deadline: Duration) {
    let (mut job, _store) = start(test, ranks);
    // Several waits may be late.
    job.allow(6 * deadline);
    job.expect(0..ranks, "Ok(())");
    job.finish();
}

/// Starts the processes, and the store in the parent at which they meet.
pub fn start(test: &str, ranks: usize) -> (Job, StoreServer) {
    let secret = Secret::random().unwrap();
    let store = StoreServer::start("127.0.0.1:0", ranks, &secret, Default::default()).unwrap();
    let mut job = Job::start(test, ranks);
    for rank in 0..ranks {
        job.tell(rank, store.address().to_string().as_bytes());
        job.tell(rank, secret.expose().as_bytes());
    }
    (job, store)
}

/// Starts the processes for a job whose rank 0 hosts the store.
pub fn start_hosted(test: &str, ranks: usize) -> Job {
    let secret = Secret::random().unwrap();
    let address = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let mut job = Job::start(test, ranks);
    for rank in 0..ranks {
        job.tell(rank, address.as_bytes());
        job.tell(rank, secret.expose().as_bytes());
    }
    job
}

pub fn join(member: &mut Member) -> World {
    join_within(member, "10s")
}

/// Rank 0 hosts the store.
pub fn join_hosted(member: &mut Member) -> World {
    join_as(member, "10s", Some("rank0"))
}

/// Joins with another deadline.
pub fn join_hosted_within(member: &mut Member, deadline: &str) -> World {
    join_as(member, deadline, Some("rank0"))
}

/// Joins a job whose launcher hosts the store, with another deadline for waits.
pub fn join_within(member: &mut Member, deadline: &str) -> World {
    join_as(member, deadline, None)
}

fn join_as(member: &mut Member, deadline: &str, host: Option<&str>) -> World {
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    let (address, secret) = (text(member.hear()), text(member.hear()));
    let placement = Placement::from_vars(&|name| match name {
        "TILEWIRE_RANK" => Some(member.rank.to_string()),
        "TILEWIRE_WORLD_SIZE" => Some(member.size.to_string()),
        "TILEWIRE_STORE" => Some(address.clone()),
        "TILEWIRE_STORE_HOST" => host.map(String::from),
        "TILEWIRE_SECRET" => Some(secret.clone()),
        "TILEWIRE_DEADLINE" => Some(deadline.to_string()),
        _ => None,
    });
    World::join(&placement.unwrap()).unwrap()
}

pub fn words(memory: &Memory) -> Vec<&AtomicU64> {
    // SAFETY: the word is inside the memory, aligned (memory of a transport begins on a line), and alive as long as the
    // handle. These tests touch it only by atomics.
    (0..memory.bytes() / 8)
        .map(|at| unsafe { AtomicU64::from_ptr(memory.start().as_ptr().cast::<u64>().add(at)) })
        .collect()
}

pub fn peers(world: &World) -> impl Iterator<Item = Rank> {
    let me = world.rank();
    Rank::all(world.size()).filter(move |&rank| rank != me)
}
