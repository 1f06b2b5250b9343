//! CPU time and memory of processes, as the kernel accounts for them. CPU time is user and system together, to a hundredth of a second.

use crate::Result;
use std::fs;

/// Linux reports times in hundredths of a second, independent of its own ticks.
const TICKS_PER_S: f64 = 100.0;
/// Fields of /proc/PID/stat after the name, counted from 0.
const USER: usize = 11;
const CHILDREN_USER: usize = 13;

/// CPU seconds that a process has used so far.
pub fn of(pid: u32) -> Result<f64> {
    seconds(&pid.to_string(), USER)
}

/// CPU seconds of all children of this process that have ended and were waited for.
pub fn of_children() -> Result<f64> {
    seconds("self", CHILDREN_USER)
}

/// The peak memory of a running process so far; `None` if it has ended.
pub fn peak_bytes(pid: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let kib =
        status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix("kB")?.trim().parse::<u64>().ok())?;
    Some(kib << 10)
}

/// The sum of a field and the next one: user time and system time.
fn seconds(process: &str, field: usize) -> Result<f64> {
    let path = format!("/proc/{process}/stat");
    let stat = fs::read_to_string(&path).map_err(|error| format!("{path}: {error}"))?;
    // The name, in brackets, can contain anything.
    let (_, after_name) = stat.rsplit_once(')').ok_or("/proc/PID/stat has no name")?;
    let ticks = after_name.split_whitespace().skip(field).take(2).map(str::parse::<u64>).sum::<std::result::Result<u64, _>>()?;
    Ok(ticks as f64 / TICKS_PER_S)
}
