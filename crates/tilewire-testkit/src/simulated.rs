//! Runs a program on the machine of `ptx_machine/`, with its arguments in that machine's memory.

use super::programs::{BufferSpec, ParamSpec, Program};
use super::ptx_machine::{self, Access, Fault, Memory, Space, Trace};
use tilewire::check::{self, Options as Schedule};
use tilewire::ir::ring::{ENTRIES, ENTRY, Posted, TAKEN};
use tilewire::ir::simplify;
use tilewire::ptx::{Module, Options, Target, abi, emit};
use tilewire::tensor::bytes_of;
use tilewire::{Arg, Traced};

/// Runs a program's module. Returns the bytes of every parameter's banks afterwards, made comparable.
pub fn simulate(program: &Program, module: &Module) -> Result<Vec<Vec<Vec<u8>>>, Fault> {
    let mut memory = Memory::default();
    let mut launch = Launch::new(&mut memory, 0, 1, u64::MAX);
    let mut places: Vec<Vec<Place>> = Vec::new();
    for spec in &program.params {
        let place = match spec {
            ParamSpec::Scalar { bits, .. } => {
                launch.words.push(*bits);
                Vec::new()
            }
            ParamSpec::Slots { len, stride } => {
                let bytes = (len * u64::from(*stride)) as usize;
                vec![Place { piece: memory.pieces.len(), address: memory.add(vec![0; bytes]), offset: 0, bytes }]
            }
            ParamSpec::Buffer(BufferSpec { alias: Some(other), .. }) => places[*other].clone(),
            ParamSpec::Buffer(spec) => {
                spec.banks.iter().map(|bank| put(&mut memory, spec.offset as usize, bank)).collect()
            }
        };
        launch.words.extend(place.iter().map(|place: &Place| place.address + place.offset as u64));
        places.push(place);
    }
    ptx_machine::run(module, &launch.args(), &mut memory)?;
    let bytes = |place: &Place| memory.pieces[place.piece][place.offset..place.offset + place.bytes].to_vec();
    Ok(program.comparable(places.iter().map(|banks| banks.iter().map(bytes).collect()).collect()))
}

/// Runs a kernel of one rank, whose result must be that of its definition. Returns its text.
pub fn same_as_defined(name: &str, traced: &Traced, target: Target) -> String {
    defined(name, traced, target, None).0
}

/// The memory after a run of all ranks, and the descriptors that the ranks posted.
pub struct Run {
    /// For every rank and parameter the bytes of every bank.
    pub results: Vec<Vec<Vec<Vec<u8>>>>,
    pub trace: Trace,
    /// For every rank the entries that its launch posted, in the order in which a proxy takes them.
    pub posted: Vec<Vec<Posted>>,
    /// For every rank and parameter the pieces of memory that contain the banks.
    pieces: Vec<Vec<Vec<usize>>>,
}

impl Run {
    /// True if an access goes to a parameter of a rank.
    pub fn is_to(&self, access: &Access, rank: usize, param: usize) -> bool {
        let piece = Memory::piece_of(access.address);
        access.space == Space::Global && piece.is_some_and(|piece| self.pieces[rank][param].contains(&piece))
    }

    /// The parameter and bank of a rank that contain an address, and the byte in the bank.
    pub fn place(&self, rank: usize, address: u64) -> Option<(usize, usize, u64)> {
        let piece = Memory::piece_of(address)?;
        let mut banks = self.pieces[rank]
            .iter()
            .enumerate()
            .flat_map(|(param, banks)| banks.iter().enumerate().map(move |(bank, &is)| (param, bank, is)));
        let (param, bank, _) = banks.find(|&(.., is)| is == piece)?;
        Some((param, bank, Memory::offset_of(address)))
    }
}

/// Does the same, and also returns the trace of the threads.
pub fn run_as_defined(name: &str, traced: &Traced, target: Target) -> (String, Run) {
    defined(name, traced, target, Some(Trace::default()))
}

fn defined(name: &str, traced: &Traced, target: Target, trace: Option<Trace>) -> (String, Run) {
    let text = emit(&simplify(&traced.kernel), Options::new(target)).unwrap().text;
    let expected = check::evaluate(&traced.kernel, &traced.args, (0, 1), Schedule::default());
    let expected = expected.unwrap_or_else(|e| panic!("{name}: {e}"));
    let run = run_ranks(std::slice::from_ref(traced), target, trace, Proxies::AtTheEnd);
    let run = run.unwrap_or_else(|fault| panic!("{name} for {target}: {}", fault.0));
    for (param, (got, expected)) in run.results[0].iter().zip(&expected).enumerate() {
        for (got, expected) in got.iter().zip(expected) {
            let wrong = (0..got.len()).find(|&k| got[k] != expected[k]);
            assert_eq!(wrong, None, "{name} for {target}: parameter {param}\n{text}");
        }
    }
    (text, run)
}

/// Runs the traced kernels of all ranks at the same time, on a copy of their memory. A memory that several ranks name
/// is copied once. Returns for every rank and parameter the bytes of every bank afterwards.
pub fn simulate_world(ranks: &[Traced], target: Target) -> Result<Vec<Vec<Vec<Vec<u8>>>>, Fault> {
    run_ranks(ranks, target, None, Proxies::AtTheEnd).map(|run| run.results)
}

/// Does the same, with the trace of all threads.
pub fn run_world(ranks: &[Traced], target: Target) -> Result<Run, Fault> {
    run_ranks(ranks, target, Some(Trace::default()), Proxies::AtTheEnd)
}

/// The times at which proxies empty the rings of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Proxies {
    /// Never during the run. The rings have room for everything.
    AtTheEnd,
    /// Whenever all threads have had a turn.
    Beside,
}

/// Runs kernels that post, beside proxies.
pub fn run_posts(ranks: &[Traced], target: Target, proxies: Proxies) -> Result<Run, Fault> {
    run_ranks(ranks, target, None, proxies)
}

fn run_ranks(ranks: &[Traced], target: Target, trace: Option<Trace>, proxies: Proxies) -> Result<Run, Fault> {
    let mut memory = Memory { trace, ..Memory::default() };
    // The memories by host address. A kernel names a memory as a whole here.
    let mut known: Vec<(usize, Place)> = Vec::new();
    let mut launches = Vec::new();
    let mut places = Vec::new();
    let mut rings: Vec<Proxy> = Vec::new();
    for (rank, traced) in ranks.iter().enumerate() {
        let mut launch = Launch::new(&mut memory, rank as u64, ranks.len() as u64, u64::MAX);
        let mut mine = Vec::new();
        for ((id, param), arg) in traced.kernel.params.iter().zip(&traced.args) {
            let mut of_arg = Vec::new();
            let banks = match arg {
                Arg::Buffer(banks) | Arg::Slots(banks) => &banks[..],
                // A scalar travels in the parameter block.
                Arg::Scalar(memory) => {
                    let word =
                        bytes_of(memory).unwrap().iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte));
                    launch.words.push(word);
                    &[]
                }
                Arg::Queue(queue) => &[queue.entries().clone(), queue.tickets().clone()],
            };
            for bank in banks {
                let address = bank.start().as_ptr() as usize;
                let place = match known.iter().find(|(at, _)| *at == address) {
                    Some((_, place)) => *place,
                    None => put(&mut memory, 0, &spread(bank)),
                };
                known.push((address, place));
                launch.words.push(place.address);
                of_arg.push(place);
            }
            let mut stamped = banks;
            if let Arg::Queue(queue) = arg {
                let (entries, capacity) = (of_arg[0].piece, (queue.entries().bytes() - ENTRIES) / ENTRY);
                launch.words.extend([capacity as u64, u64::from(queue.target()) << 32]);
                stamped = &banks[..1];
                if rings.iter().all(|ring| ring.entries != entries) {
                    rings.push(Proxy { rank, entries, capacity, posted: Vec::new() });
                }
            }
            if traced.kernel.is_matched(id) {
                let operation = |bank: &tilewire::Memory| bank.operation().unwrap_or(0);
                launch.words.extend(stamped.iter().map(|bank| abi::stamp(param, operation(bank))));
            }
            mine.push(of_arg);
        }
        let module = emit(&simplify(&traced.kernel), Options::new(target)).expect("a kernel that has PTX");
        launches.push((module, launch.args()));
        places.push(mine);
    }
    let all: Vec<(&Module, &[u8])> = launches.iter().map(|(module, args)| (module, &args[..])).collect();
    ptx_machine::run_beside(&all, &mut memory, &mut |memory| {
        if proxies == Proxies::Beside {
            rings.iter_mut().for_each(|ring| ring.empty(memory));
        }
    })?;
    rings.iter_mut().for_each(|ring| ring.empty(&mut memory));
    let of_rank =
        |rank: usize| rings.iter().filter(|ring| ring.rank == rank).flat_map(|ring| ring.posted.clone()).collect();
    let posted = (0..ranks.len()).map(of_rank).collect();
    // The bytes without the gaps between rows, as the evaluator returns them.
    let bytes = |arg: &Arg, k: usize, place: &Place| {
        let all = &memory.pieces[place.piece][..place.bytes];
        match arg {
            Arg::Buffer(banks) => {
                banks[k].runs().flat_map(|(at, row)| all[at..at + row.bytes()].iter().copied()).collect()
            }
            _ => all.to_vec(),
        }
    };
    let of_arg =
        |(arg, places): (&Arg, &Vec<Place>)| places.iter().enumerate().map(|(k, place)| bytes(arg, k, place)).collect();
    let of_rank = |(traced, places): (&Traced, &Vec<Vec<Place>>)| traced.args.iter().zip(places).map(of_arg).collect();
    let results = ranks.iter().zip(&places).map(of_rank).collect();
    let pieces =
        places.iter().map(|rank| rank.iter().map(|arg| arg.iter().map(|place| place.piece).collect()).collect());
    Ok(Run { results, posted, pieces: pieces.collect(), trace: memory.trace.unwrap_or_default() })
}

/// The proxy of a ring in the machine's memory, by the rules of `tilewire::ir::ring`.
pub struct Proxy {
    pub rank: usize,
    /// The piece with the entries.
    pub entries: usize,
    pub capacity: usize,
    /// The entries that the proxy has taken.
    pub posted: Vec<Posted>,
}

impl Proxy {
    /// Takes all entries that are published.
    pub fn empty(&mut self, memory: &mut Memory) {
        loop {
            let taken = memory.word(self.entries, TAKEN);
            let entry = ENTRIES + taken as usize % self.capacity * ENTRY;
            if memory.word(self.entries, entry) != taken + 1 {
                return;
            }
            let words = std::array::from_fn(|k| memory.word(self.entries, entry + 8 * (k + 1)));
            self.posted.push(Posted::of_words(words).unwrap_or_else(|| panic!("no entry: {words:x?}")));
            // Words written into a freed entry before its turn must not be taken for the old entry.
            (1..8).for_each(|k| memory.set_word(self.entries, entry + 8 * k, u64::MAX));
            memory.set_word(self.entries, TAKEN, taken + 1);
        }
    }
}

/// The parameter block of a launch: see `tilewire::ptx::abi`.
pub struct Launch {
    pub words: Vec<u64>,
    /// The numbers of the pieces with the abort word and the report.
    pub abort: usize,
    pub report: usize,
}

impl Launch {
    pub fn new(memory: &mut Memory, rank: u64, world_size: u64, deadline: u64) -> Self {
        let (abort, report) = (memory.pieces.len(), memory.pieces.len() + 1);
        let words = vec![rank, world_size, memory.add(vec![0; 8]), memory.add(vec![0; 8 * (abi::LIFTS + 1)]), deadline];
        Launch { words, abort, report }
    }

    pub fn args(&self) -> Vec<u8> {
        self.words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }
}

#[derive(Clone, Copy)]
struct Place {
    piece: usize,
    address: u64,
    offset: usize,
    bytes: usize,
}

/// The bytes of a memory with filler bytes in the gaps between its rows.
fn spread(bank: &tilewire::Memory) -> Vec<u8> {
    let mut bytes = vec![0xee; bank.bytes()];
    for (at, row) in bank.runs() {
        bytes[at..at + row.bytes()].copy_from_slice(&bytes_of(&row).unwrap());
    }
    bytes
}

fn put(memory: &mut Memory, offset: usize, bank: &[u8]) -> Place {
    let mut bytes = vec![0xcc; offset];
    bytes.extend_from_slice(bank);
    Place { piece: memory.pieces.len(), address: memory.add(bytes), offset, bytes: bank.len() }
}
