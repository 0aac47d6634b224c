//! The machine that the figures were measured on, as far as the system tells.

use serde::Serialize;
use std::collections::BTreeMap;
use std::fs;

/// The machine a report is about.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Machine {
    /// The processor's model name.
    pub cpu: String,
    /// Processors this process may use.
    pub cores: usize,
    /// The instruction-set level the engine runs at.
    pub level: &'static str,
    /// Caches of the first processor, as `L1d`: `48K`.
    pub caches: BTreeMap<String, String>,
}

impl Machine {
    /// Reads what is readable; unknown fields stay empty.
    pub fn read() -> Machine {
        Machine {
            cpu: cpu_model().unwrap_or_else(|| std::env::consts::ARCH.into()),
            cores: std::thread::available_parallelism().map_or(1, |n| n.get()),
            level: tilewire::Level::detect().name(),
            caches: (0..8).map_while(cache).filter(|(name, _)| !name.ends_with('i')).collect(),
        }
    }
}

/// The most memory this process ever had resident, in bytes (`VmHWM`).
pub fn peak_resident() -> Option<usize> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().trim_end_matches("kB").trim().parse::<usize>().ok().map(|kib| kib << 10)
}

fn cpu_model() -> Option<String> {
    let info = fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = info.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_string())
}

fn cache(index: usize) -> Option<(String, String)> {
    let read = |what: &str| {
        let path = format!("/sys/devices/system/cpu/cpu0/cache/index{index}/{what}");
        fs::read_to_string(path).ok().map(|text| text.trim().to_string())
    };
    let suffix = match read("type")?.as_str() {
        "Data" => "d",
        "Instruction" => "i",
        _ => "",
    };
    Some((format!("L{}{suffix}", read("level")?), read("size")?))
}
