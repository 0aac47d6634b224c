//! `tilewire topo`: the machine's hardware, the transport of each pair of ranks, and why. `tilewire doctor`: whether it
//! is suitable, item by item.

use crate::table::hanging;
use anyhow::Result;
use std::fs;
use std::io::{Write, stdout};
use std::process::{Command, ExitCode};
use std::sync::Arc;
use tilewire::Level;
use tilewire::cuda::{CudaError, Device};
use tilewire::link::{NetworkOptions, network_of};
use tilewire::transport::fabric::FabricCarrier;

/// Prints the machine and its links.
pub fn topo() -> Result<()> {
    let mut out = stdout().lock();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    writeln!(out, "CPU    {} processors, instruction set level {}", cores, Level::detect().name())?;
    let devices = match devices() {
        Ok(devices) => devices,
        Err(error) => {
            writeln!(out, "{}", hanging("GPU    ", &format!("none: {error}")))?;
            Vec::new()
        }
    };
    for device in &devices {
        let (free, all) = device.memory()?;
        let what = format!(
            "{}, {}, {} multiprocessors, {:.1} of {:.1} GiB free",
            device.name(),
            device.target(),
            device.multiprocessors(),
            free as f64 / f64::from(1 << 30),
            all as f64 / f64::from(1 << 30)
        );
        writeln!(out, "{}", hanging(&format!("GPU {}  ", device.ordinal()), &what))?;
    }
    writeln!(out, "\nbetween two ranks on this machine")?;
    writeln!(out, "  CPU and CPU      ShmTransport: both map the same memory (threads: the heap; processes: a memfd)")?;
    for (k, device) in devices.iter().enumerate() {
        let own = device.ordinal();
        writeln!(
            out,
            "  GPU {own} and GPU {own}  NvlTransport: several ranks on one device, each with its own stream"
        )?;
        for other in &devices[k + 1..] {
            let both = device.reaches(other)? && other.reaches(device)?;
            let how = match both {
                true => "NvlTransport: each device can load and store in the other's memory",
                false => {
                    "MeshTransport: the devices cannot reach each other's memory, so ranks post through the host's"
                }
            };
            writeln!(out, "{}", hanging(&format!("  GPU {own} and GPU {}  ", other.ordinal()), how))?;
        }
    }
    let (_, network) = network();
    writeln!(out, "{}", hanging("  another machine  ", &format!("FabricTransport, MeshTransport: {network}")))?;
    Ok(())
}

/// The network that ranks of this machine would choose, and why, those on the first GPU if there is one; false if there
/// is none.
fn network() -> (bool, String) {
    let chosen = match devices().ok().and_then(|devices| devices.into_iter().next()) {
        Some(device) => network_of(&device, NetworkOptions::default()),
        None => FabricCarrier::open(NetworkOptions::default(), 0, 1).map(|(carrier, _)| carrier.choice().clone()),
    };
    match chosen {
        Err(error) => (false, format!("no network: {error}").replace('\n', " ")),
        Ok(choice) => {
            let passed: Vec<String> = choice.passed_over.iter().map(|(name, why)| format!("{name}: {why}")).collect();
            let why = if passed.is_empty() { String::new() } else { format!("; not taken: {}", passed.join("; ")) };
            (true, format!("{choice}{why}"))
        }
    }
}

/// Reports for every requirement if it is met; status 1 if a mandatory one is not.
pub fn doctor() -> Result<ExitCode> {
    let mut out = stdout().lock();
    let mut sound = true;
    let mut say = |fine: Option<bool>, what: &str, why: String| -> Result<()> {
        let mark = match fine {
            Some(true) => "ok",
            Some(false) => "BAD",
            None => "--",
        };
        sound &= fine != Some(false);
        Ok(writeln!(out, "{}", hanging(&format!("{mark:>4}  {what:<28} "), &why))?)
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    say(Some(true), "processors", format!("{cores}; more ranks than that take turns, and sleep while they wait"))?;
    let level = Level::detect();
    let fast = level.name() != "sse2";
    say(
        if fast { Some(true) } else { None },
        "instruction set",
        format!("{}; AVX2 or AVX-512 is faster", level.name()),
    )?;
    let files = limit("Max open files");
    let why = format!(
        "{}: every rank of a world needs two for each other",
        files.map_or("unknown".into(), |n| n.to_string())
    );
    say(files.map(|n| n >= 256), "open files", why)?;
    let free = meminfo("MemAvailable");
    let why = free.map_or("unknown".into(), |kib| format!("{:.1} GiB available", kib as f64 / f64::from(1 << 20)));
    say(free.map(|kib| kib > 256 << 10), "memory", why)?;
    match devices() {
        Ok(devices) => {
            let version = Device::driver_version()?;
            say(Some(true), "CUDA driver", format!("{}.{}", version / 1000, version % 1000 / 10))?;
            for device in devices {
                let (free, _) = device.memory()?;
                let why = format!(
                    "{} ({}), {:.1} GiB free",
                    device.name(),
                    device.target(),
                    free as f64 / f64::from(1 << 30)
                );
                say(Some(free > 256 << 20), "GPU", why)?;
            }
            let queues = std::env::var("CUDA_DEVICE_MAX_CONNECTIONS").unwrap_or_else(|_| "8 (unset)".into());
            let why = format!("{queues}; set it to 32 for more than 8 ranks on one device");
            say(Some(true), "CUDA_DEVICE_MAX_CONNECTIONS", why)?;
        }
        // A machine without a GPU is no fault; one whose driver does not answer is.
        Err(error @ CudaError::NoDriver) => say(None, "CUDA driver", format!("{error}; CPU ranks need none"))?,
        Err(error) => say(Some(false), "CUDA driver", error.to_string())?,
    }
    let (is_there, why) = network();
    // Ranks of one machine need none.
    say(is_there.then_some(true), "network", why)?;
    let mpi = Command::new("mpirun").arg("--version").output().ok().filter(|run| run.status.success());
    let mpi = mpi.map(|run| String::from_utf8_lossy(&run.stdout).lines().next().unwrap_or_default().to_string());
    say(mpi.is_some().then_some(true), "Open MPI", mpi.unwrap_or("not found; only benchmarks compare with it".into()))?;
    Ok(if sound { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn devices() -> Result<Vec<Arc<Device>>, CudaError> {
    (0..Device::count()?).map(Device::open).collect()
}

/// The soft limit in a line of `/proc/self/limits`; `None` if there is none or it is unknown.
fn limit(name: &str) -> Option<u64> {
    let limits = fs::read_to_string("/proc/self/limits").ok()?;
    let line = limits.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

/// A line of `/proc/meminfo`, in KiB.
fn meminfo(name: &str) -> Option<u64> {
    let info = fs::read_to_string("/proc/meminfo").ok()?;
    let line = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    line.split_whitespace().next()?.parse().ok()
}
