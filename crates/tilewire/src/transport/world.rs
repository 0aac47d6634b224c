//! What a rank knows of its world, and ranks that are threads.
#![forbid(unsafe_code)]

use super::bootstrap::{Bootstrap, BootstrapError, LocalBootstrap, TcpBootstrap};
use super::launcher::{Launcher, Placement, deadline_of_environment};
use super::meeting::Meeting;
use super::threads::room_for_a_thread;
use super::{AbortCode, Cause, Deadline, Rank, SegmentError, SegmentSet, TransportError};
use std::any::Any;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// One rank's view of all the ranks: its number, how many there are, and how to reach them.
///
/// Ranks are threads of this process:
///
/// ```
/// use tilewire::transport::World;
///
/// let sums = World::threads(4).run(|world| {
///     let own = world.rank().number().to_le_bytes();
///     let all = world.bootstrap().all_gather("numbers", &own, world.deadline())?;
///     Ok(all.iter().map(|number| u32::from(number[0])).sum::<u32>())
/// })?;
/// assert_eq!(sums, [6, 6, 6, 6]);
/// # Ok::<(), tilewire::transport::WorldError>(())
/// ```
///
/// or processes, started by `tilewire launch -n 4 -- program`, torchrun, mpirun or srun:
///
/// ```no_run
/// use tilewire::transport::World;
///
/// let world = World::from_env()?;
/// println!("rank {} of {}", world.rank(), world.size());
/// world.bootstrap().barrier("started", world.deadline())?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct World {
    bootstrap: Arc<dyn Bootstrap>,
    local_rank: Option<usize>,
    deadline: Option<Duration>,
    /// Where threads hand each other what cannot go through a bootstrap; `None` where ranks are processes.
    meeting: Option<Arc<Meeting>>,
}

/// What a rank's body may fail with.
pub type RankError = Box<dyn std::error::Error + Send + Sync>;

impl World {
    /// A world of threads, to be [`run`](Threads::run).
    pub fn threads(count: usize) -> Threads {
        Threads { count, deadline: None }
    }

    /// The world this process was started in, by the variables of its launcher. Returns when all ranks have joined.
    pub fn from_env() -> Result<World, WorldError> {
        World::join(&Placement::from_env()?)
    }

    /// The world at a place that is known. Returns when all ranks have joined.
    pub fn join(placement: &Placement) -> Result<World, WorldError> {
        let &Placement { rank, world_size, local_rank, deadline, .. } = placement;
        let until = length(deadline);
        let bootstrap: Arc<dyn Bootstrap> = match &placement.store {
            None => Arc::new(LocalBootstrap::world(1).remove(0)),
            Some(store) if store.hosted_by_rank_0 && rank.index() == 0 => {
                Arc::new(TcpBootstrap::host(&store.address, world_size, &store.secret, until)?)
            }
            Some(store) => {
                let host = store.hosted_by_rank_0.then_some(Rank::new(0));
                Arc::new(TcpBootstrap::connect_to(host, &store.address, rank, world_size, &store.secret, until)?)
            }
        };
        // So that who is missing is known here, and not by whatever is called first; and so that rank 0, which may host the
        // store, cannot have left before all others have come.
        if let Err(error) = bootstrap.barrier("tilewire/joined", until) {
            // Told why, the others can name the ranks that are missing as well, and not just this one that left.
            bootstrap.abort(&error.to_string());
            return Err(error.into());
        }
        Ok(World { bootstrap, local_rank, deadline, meeting: None })
    }

    /// This rank.
    pub fn rank(&self) -> Rank {
        self.bootstrap.rank()
    }

    /// How many ranks there are.
    pub fn size(&self) -> usize {
        self.bootstrap.world_size()
    }

    /// The rank after this one round the ring of all ranks.
    pub fn next(&self) -> Rank {
        self.rank().after(1, self.size())
    }

    /// The rank before this one round the ring of all ranks.
    ///
    /// ```
    /// use tilewire::World;
    /// let neighbours = World::threads(3).run(|world| Ok((world.previous().number(), world.next().number())))?;
    /// assert_eq!(neighbours, [(2, 1), (0, 2), (1, 0)]);
    /// # Ok::<(), tilewire::transport::WorldError>(())
    /// ```
    pub fn previous(&self) -> Rank {
        self.rank().after(self.size() - 1, self.size())
    }

    /// Which of the ranks of its host this is: the usual choice of a device. Threads are all on one host.
    pub fn local_rank(&self) -> Option<usize> {
        self.local_rank
    }

    /// What ranks agree through.
    pub fn bootstrap(&self) -> &Arc<dyn Bootstrap> {
        &self.bootstrap
    }

    /// From now, as long as waits last in this world.
    pub fn deadline(&self) -> Deadline {
        length(self.deadline)
    }

    pub(super) fn deadline_length(&self) -> Option<Duration> {
        self.deadline
    }

    /// Whether the ranks are threads of one process, and not processes.
    ///
    /// ```
    /// # use tilewire::transport::World;
    /// assert_eq!(World::threads(2).run(|world| Ok(world.are_threads()))?, [true, true]);
    /// # Ok::<(), tilewire::transport::WorldError>(())
    /// ```
    pub fn are_threads(&self) -> bool {
        self.meeting.is_some()
    }

    /// Where ranks that are threads hand each other memory.
    pub(super) fn meeting(&self) -> Option<&Arc<Meeting>> {
        self.meeting.as_ref()
    }

    /// For a transport of your own: ends the waits on its segments, on every rank, when a rank of this world returns an error or panics.
    /// Any rank may say so, or each. Where ranks are processes this does nothing: there, a [`Monitor`](super::Monitor) sees a rank end.
    ///
    /// ```
    /// use std::sync::Mutex;
    /// use tilewire::transport::{SegmentSet, World};
    /// let sets = Mutex::new(SegmentSet::threads(2, 1000)?);
    /// World::threads(2).run(|world| {
    ///     let segments = sets.lock().unwrap().pop().unwrap();
    ///     world.watch(&segments);
    ///     Ok(())
    /// })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn watch(&self, segments: &SegmentSet) {
        if let Some(meeting) = &self.meeting {
            meeting.watch(segments);
        }
    }

    /// Tells all ranks that this one has failed, so that none waits for it.
    pub fn abort(&self, reason: &str) {
        self.bootstrap.abort(reason);
    }
}

/// A world of threads that has not started yet.
#[derive(Clone, Copy, Debug)]
pub struct Threads {
    count: usize,
    /// Where it is said.
    deadline: Option<Option<Duration>>,
}

impl Threads {
    /// How long waits last, `None`: without end. Unless told, as long as `TILEWIRE_DEADLINE` says, or 30 s.
    pub fn deadline(self, deadline: impl Into<Option<Duration>>) -> Threads {
        Threads { deadline: Some(deadline.into()), ..self }
    }

    /// Runs `body` once for each rank, each in a thread of its own, and gives what they return, by rank.
    ///
    /// When one returns an error or panics, the waits of the others end at once, and it is the one that is reported: the
    /// others, which fail because of it, are not.
    ///
    /// ```
    /// use tilewire::transport::{Rank, World, WorldError};
    ///
    /// let result = World::threads(3).run(|world| {
    ///     if world.rank() == Rank::new(1) {
    ///         return Err("no memory".into());
    ///     }
    ///     world.bootstrap().barrier("never complete", world.deadline())?;
    ///     Ok(())
    /// });
    /// assert_eq!(result.unwrap_err().to_string(), "rank 1 failed: no memory");
    /// ```
    pub fn run<R: Send>(self, body: impl Fn(World) -> Result<R, RankError> + Sync) -> Result<Vec<R>, WorldError> {
        let Threads { count, deadline } = self;
        if count == 0 || u32::try_from(count).is_err() {
            return Err(WorldError::BadSize { count });
        }
        let deadline = deadline.map_or_else(deadline_of_environment, Ok)?;
        let failure = FirstFailure::default();
        let meeting = Arc::new(Meeting::of(count));
        let one = |local: LocalBootstrap| {
            let bootstrap: Arc<dyn Bootstrap> = Arc::new(local);
            let (rank, local_rank) = (bootstrap.rank(), Some(bootstrap.rank().index()));
            // This handle outlives the body, so that a rank that panics has failed with its message, and has not just left.
            let world = World { bootstrap: bootstrap.clone(), local_rank, deadline, meeting: Some(meeting.clone()) };
            // The closure is shared by reference and not used again by this rank; what another rank sees of it after the panic
            // it may also see before.
            let (code, error) = match catch_unwind(AssertUnwindSafe(|| body(world))) {
                Ok(Ok(result)) => {
                    // Whoever took the world, or a transport, out of the closure goes on with it.
                    if Arc::strong_count(&bootstrap) == 1 {
                        meeting.leaves(rank.index());
                    }
                    return Some(result);
                }
                Ok(Err(source)) => (AbortCode::Failed, WorldError::RankFailed { rank, source }),
                Err(payload) => {
                    (AbortCode::Panicked, WorldError::RankPanicked { rank, message: panic_message(&*payload) })
                }
            };
            // The cause is noted before anybody's wait ends because of it: who fails second must not be taken for it. And transports have
            // it before the bootstrap does: who hears there that this rank is gone finds out why on its transport.
            let reason = failure.note(error);
            meeting.fail(Cause { code, rank: rank.index(), reason: 0 });
            bootstrap.abort(&reason);
            None
        };
        let results: Vec<Option<R>> = std::thread::scope(|scope| {
            // All are started before one is awaited.
            let start = |local: LocalBootstrap| {
                let rank = local.rank();
                let slot = Arc::new(Mutex::new(Some(local)));
                let own = slot.clone();
                let thread = std::thread::Builder::new().name(format!("rank {rank}"));
                let started = room_for_a_thread()
                    .and_then(|()| thread.spawn_scoped(scope, || one(take(own).expect("only its thread takes it"))));
                started.map_err(|source| {
                    if let Some(local) = take(slot) {
                        let reason = failure.note(WorldError::NoThread { rank, count, source });
                        meeting.fail(Cause { code: AbortCode::Failed, rank: rank.index(), reason: 0 });
                        local.abort(&reason);
                    }
                })
            };
            let threads: Vec<_> = LocalBootstrap::world(count).into_iter().map(start).collect();
            threads.into_iter().map(|thread| thread.ok()?.join().ok()?).collect()
        });
        match failure.of(count) {
            Some(error) => Err(error),
            None => Ok(results.into_iter().map(|result| result.expect("a rank gives a result or reports")).collect()),
        }
    }
}

/// What failed first: the cause, and how many ranks said the same. Set before the others hear of it.
#[derive(Default)]
struct FirstFailure(Mutex<Option<(WorldError, usize)>>);

impl FirstFailure {
    /// Takes note of an error; gives the reason to tell the others.
    fn note(&self, error: WorldError) -> String {
        let reason_of = |error: &WorldError| match error {
            WorldError::RankFailed { source, .. } => source.to_string(),
            other => other.to_string(),
        };
        let reason = reason_of(&error);
        let mut first = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *first {
            // Whoever was told of an error may return before the rank that had it: the error is that rank's.
            Some((first, same)) if matches!(&error, WorldError::RankFailed { rank, .. } if blames(first, *rank)) => {
                (*first, *same) = (error, 1);
            }
            Some((first, same)) => *same += usize::from(reason_of(first) == reason),
            None => *first = Some((error, 1)),
        }
        reason
    }

    /// A mistake in what all ranks do is no fault of the one that was first.
    fn of(self, count: usize) -> Option<WorldError> {
        let (first, same) = self.0.into_inner().unwrap_or_else(PoisonError::into_inner)?;
        match first {
            WorldError::RankFailed { source, .. } if same == count && count > 1 => {
                Some(WorldError::AllFailed { count, source })
            }
            first => Some(first),
        }
    }
}

/// Whether an error says no more than that another rank cannot go on.
fn blames(error: &WorldError, rank: Rank) -> bool {
    let WorldError::RankFailed { source, .. } = error else { return false };
    match source.downcast_ref::<TransportError>() {
        Some(TransportError::Peer { rank: other, .. }) => *other == rank,
        Some(TransportError::Segment(SegmentError::Peer { rank: other, .. })) => *other == rank.index(),
        _ => false,
    }
}

fn take<T>(slot: Arc<Mutex<Option<T>>>) -> Option<T> {
    slot.lock().unwrap_or_else(PoisonError::into_inner).take()
}

fn length(deadline: Option<Duration>) -> Deadline {
    deadline.map_or(Deadline::never(), Deadline::after)
}

fn panic_message(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(|text| text.to_string());
    text.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".to_string())
}

/// Why there is no world, or which rank of it failed.
#[non_exhaustive]
pub enum WorldError {
    /// No launcher's variables are set.
    NoLauncher,
    /// A launcher's variables are there, but not all that is needed.
    MissingVariable {
        /// The launcher.
        launcher: Launcher,
        /// What to set.
        variable: String,
        /// To what.
        value: String,
        /// How to get it to the ranks under this launcher.
        how: String,
    },
    /// A variable says something that cannot be meant.
    BadVariable {
        /// Its name.
        variable: String,
        /// What it says.
        value: String,
        /// What it should say.
        expected: String,
    },
    /// A world of no ranks, or of too many.
    BadSize {
        /// The number that was given.
        count: usize,
    },
    /// The ranks did not find each other.
    Bootstrap(BootstrapError),
    /// The operating system gave no thread for a rank.
    NoThread {
        /// The rank.
        rank: Rank,
        /// How many there are.
        count: usize,
        /// Why.
        source: io::Error,
    },
    /// A rank returned an error.
    RankFailed {
        /// The rank.
        rank: Rank,
        /// Its error.
        source: RankError,
    },
    /// All ranks returned the same error.
    AllFailed {
        /// How many there are.
        count: usize,
        /// Their error, as the first of them said it.
        source: RankError,
    },
    /// A rank panicked.
    RankPanicked {
        /// The rank.
        rank: Rank,
        /// What it said.
        message: String,
    },
}

errors! {
    enum WorldError {
        NoLauncher =>
            "no launcher's variables are set: start the program with `tilewire launch -n N -- PROGRAM`, torchrun, \
             mpirun or srun, or use World::threads(n)",
        MissingVariable { launcher, variable, value, how } =>
            "{launcher} does not say all that is needed: set {variable} to {value}; {how}",
        BadVariable { variable, value, expected } => "{variable} is '{value}': it must be {expected}",
        BadSize { count } => ("a world of {count} ranks: there must be from 1 to {}", u32::MAX),
        Bootstrap(error) => "{error}",
        NoThread { rank, count, source } =>
            "no thread for rank {rank} of {count} ({source}): start fewer ranks, or raise the limits on threads and \
             memory (ulimit -u, ulimit -v)",
        RankFailed { rank, source } => "rank {rank} failed: {source}",
        AllFailed { count, source } => "all {count} ranks failed: {source}",
        RankPanicked { rank, message } => "rank {rank} panicked: {message}",
    }
    source {
        Bootstrap(error) => error.source(),
        NoThread { source, .. } => source.source(),
        RankFailed { source, .. } | AllFailed { source, .. } => source.source(),
    }
    from { BootstrapError => Bootstrap }
}
