//! A rank's view of its world, and worlds of threads.
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
    /// Where threads pass each other what cannot go through a bootstrap; `None` if ranks are processes.
    meeting: Option<Arc<Meeting>>,
}

/// The error of a rank's body.
pub type RankError = Box<dyn std::error::Error + Send + Sync>;

impl World {
    /// A world of threads, to be [`run`](Threads::run).
    pub fn threads(count: usize) -> Threads {
        Threads { count, deadline: None }
    }

    /// The world that this process was started in, from the variables of its launcher. Returns when all ranks have
    /// joined.
    pub fn from_env() -> Result<World, WorldError> {
        World::join(&Placement::from_env()?)
    }

    /// The world at a known place. Returns when all ranks have joined.
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
        // This finds missing ranks here, and not in whatever call comes first. It also keeps rank 0, which may host the
        // store, from leaving before all others have come.
        if let Err(error) = bootstrap.barrier("tilewire/joined", until) {
            // Knowing why, the others can name the missing ranks too, and not just this rank, which left.
            bootstrap.abort(&error.to_string());
            return Err(error.into());
        }
        Ok(World { bootstrap, local_rank, deadline, meeting: None })
    }

    /// This rank.
    pub fn rank(&self) -> Rank {
        self.bootstrap.rank()
    }

    /// The number of ranks.
    pub fn size(&self) -> usize {
        self.bootstrap.world_size()
    }

    /// The rank after this one in the ring of all ranks.
    pub fn next(&self) -> Rank {
        self.rank().after(1, self.size())
    }

    /// The rank before this one in the ring of all ranks.
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

    /// The number of this rank among the ranks of its host: the usual choice of a device. Threads are all on one host.
    pub fn local_rank(&self) -> Option<usize> {
        self.local_rank
    }

    /// The bootstrap through which ranks agree.
    pub fn bootstrap(&self) -> &Arc<dyn Bootstrap> {
        &self.bootstrap
    }

    /// A deadline that starts now, as long as waits last in this world.
    pub fn deadline(&self) -> Deadline {
        length(self.deadline)
    }

    pub(super) fn deadline_length(&self) -> Option<Duration> {
        self.deadline
    }

    /// True if the ranks are threads of one process, false if they are processes.
    ///
    /// ```
    /// # use tilewire::transport::World;
    /// assert_eq!(World::threads(2).run(|world| Ok(world.are_threads()))?, [true, true]);
    /// # Ok::<(), tilewire::transport::WorldError>(())
    /// ```
    pub fn are_threads(&self) -> bool {
        self.meeting.is_some()
    }

    /// Where ranks that are threads pass each other memory.
    pub(super) fn meeting(&self) -> Option<&Arc<Meeting>> {
        self.meeting.as_ref()
    }

    /// For a transport of your own: ends the waits on its segments, on every rank, when a rank of this world returns an
    /// error or panics. One rank may call this, or each of them. If ranks are processes this does nothing: there, a
    /// [`Monitor`](super::Monitor) sees a rank end.
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
    /// `None` if not specified.
    deadline: Option<Option<Duration>>,
}

impl Threads {
    /// How long waits last; `None`: forever. The default is `TILEWIRE_DEADLINE`, or else 30 s.
    pub fn deadline(self, deadline: impl Into<Option<Duration>>) -> Threads {
        Threads { deadline: Some(deadline.into()), ..self }
    }

    /// Runs `body` once for each rank, each in a thread of its own, and returns their results, by rank.
    ///
    /// When one returns an error or panics, the waits of the others end immediately. That rank is reported, and not the
    /// others, which fail because of it.
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
            // This handle outlives the body, so that a rank that panics counts as failed with its message, and not just
            // as having left.
            let world = World { bootstrap: bootstrap.clone(), local_rank, deadline, meeting: Some(meeting.clone()) };
            // The closure is shared by reference and this rank does not use it again. Whatever another rank sees of it
            // after the panic, it could also see before.
            let (code, error) = match catch_unwind(AssertUnwindSafe(|| body(world))) {
                Ok(Ok(result)) => {
                    // If the closure let the world or a transport escape, its new owner goes on with it.
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
            // The cause is noted before it ends any wait: a rank that fails second must not be taken for the cause. And
            // transports get it before the bootstrap does: a rank that hears there that this rank is gone finds out why
            // on its transport.
            let reason = failure.note(error);
            meeting.fail(Cause { code, rank: rank.index(), reason: 0 });
            bootstrap.abort(&reason);
            None
        };
        let results: Vec<Option<R>> = std::thread::scope(|scope| {
            // All are started before any is joined.
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

/// The first failure: the cause, and how many ranks reported the same. Set before the others hear of it.
#[derive(Default)]
struct FirstFailure(Mutex<Option<(WorldError, usize)>>);

impl FirstFailure {
    /// Notes an error; returns the reason to tell the others.
    fn note(&self, error: WorldError) -> String {
        let reason_of = |error: &WorldError| match error {
            WorldError::RankFailed { source, .. } => source.to_string(),
            other => other.to_string(),
        };
        let reason = reason_of(&error);
        let mut first = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *first {
            // A rank that was told of an error may return before the rank that had it. The error belongs to the latter.
            Some((first, same)) if matches!(&error, WorldError::RankFailed { rank, .. } if blames(first, *rank)) => {
                (*first, *same) = (error, 1);
            }
            Some((first, same)) => *same += usize::from(reason_of(first) == reason),
            None => *first = Some((error, 1)),
        }
        reason
    }

    /// A mistake that all ranks make is not the fault of the rank that came first.
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

/// True if an error says only that another rank cannot go on.
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
    /// A launcher's variables are set, but not all that are needed.
    MissingVariable {
        /// The launcher.
        launcher: Launcher,
        /// The variable to set.
        variable: String,
        /// The value to set it to.
        value: String,
        /// How to pass it to the ranks under this launcher.
        how: String,
    },
    /// A variable has an invalid value.
    BadVariable {
        /// Its name.
        variable: String,
        /// Its value.
        value: String,
        /// What it should be.
        expected: String,
    },
    /// A world of no ranks, or of too many.
    BadSize {
        /// The number that was given.
        count: usize,
    },
    /// The ranks did not find each other.
    Bootstrap(BootstrapError),
    /// The operating system provided no thread for a rank.
    NoThread {
        /// The rank.
        rank: Rank,
        /// The number of ranks.
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
        /// The number of ranks.
        count: usize,
        /// Their error, from the first of them.
        source: RankError,
    },
    /// A rank panicked.
    RankPanicked {
        /// The rank.
        rank: Rank,
        /// Its panic message.
        message: String,
    },
}

errors! {
    enum WorldError {
        NoLauncher =>
            "no launcher's variables are set: start the program with `tilewire launch -n N -- PROGRAM`, torchrun, \
             mpirun or srun, or use World::threads(n)",
        MissingVariable { launcher, variable, value, how } =>
            "{launcher} does not set everything that is needed: set {variable} to {value}; {how}",
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
