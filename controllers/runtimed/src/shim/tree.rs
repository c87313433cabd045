//! The processes of a Run as /proc shows them, and how they are signalled without ever hitting a stranger.

use std::collections::{HashMap, HashSet};

use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open, pidfd_send_signal};

use super::spec::ProcessId;

/// One line of /proc/PID/stat, as far as it matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stat {
    pid: i32,
    parent: i32,
    group: i32,
    session: i32,
    zombie: bool,
    start_ticks: u64,
}

impl Stat {
    fn id(&self) -> ProcessId {
        ProcessId { pid: self.pid, start_ticks: self.start_ticks }
    }

    /// The name (field 2) is in parentheses and may hold anything, parentheses too; the fields go on after the last one.
    fn parse(text: &str) -> Option<Self> {
        let pid = text.split(' ').next()?.parse().ok()?;
        let (_, rest) = text.rsplit_once(") ")?;
        let fields: Vec<&str> = rest.split(' ').collect();
        Some(Self {
            pid,
            zombie: *fields.first()? == "Z",
            parent: fields.get(1)?.parse().ok()?,
            group: fields.get(2)?.parse().ok()?,
            session: fields.get(3)?.parse().ok()?,
            start_ticks: fields.get(19)?.parse().ok()?,
        })
    }

    fn read(pid: i32) -> Option<Self> {
        Self::parse(&std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }
}

fn all() -> Vec<Stat> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.filter_map(Stat::read).collect()
}

/// When that process started; None if there is none. A zombie counts as gone: it has given back all but its number.
pub fn start_ticks(pid: i32) -> Option<u64> {
    Stat::read(pid).filter(|stat| !stat.zombie).map(|stat| stat.start_ticks)
}

/// Whether that very process still lives.
pub fn lives(process: ProcessId) -> bool {
    start_ticks(process.pid) == Some(process.start_ticks)
}

/// Every live descendant of `root`, without itself.
pub fn descendants(root: i32) -> Vec<ProcessId> {
    descendants_in(&all(), root).iter().map(Stat::id).collect()
}

/// Sends KILL to every live descendant of `root`: to their process groups at once, so that none slips through by forking, and to each.
///
/// `root` leads the session that they are in, or they have made sessions of their own: no stranger is in their groups. Its own group is spared.
pub fn kill_descendants(root: i32) {
    let all = descendants_in(&all(), root);
    let groups: HashSet<i32> = all.iter().map(|stat| stat.group).filter(|group| *group != root).collect();
    for group in groups.into_iter().filter_map(Pid::from_raw) {
        // It may have ended in this moment.
        let _ = kill_process_group(group, Signal::KILL);
    }
    for process in all.iter().map(Stat::id) {
        signal(process, Signal::KILL);
    }
}

fn descendants_in(all: &[Stat], root: i32) -> Vec<Stat> {
    let mut children: HashMap<i32, Vec<&Stat>> = HashMap::new();
    for stat in all {
        children.entry(stat.parent).or_default().push(stat);
    }
    let (mut found, mut seen, mut todo) = (Vec::new(), HashSet::from([root]), vec![root]);
    while let Some(parent) = todo.pop() {
        for child in children.get(&parent).into_iter().flatten() {
            if seen.insert(child.pid) {
                todo.push(child.pid);
                if !child.zombie {
                    found.push(**child);
                }
            }
        }
    }
    found
}

/// What a dead `leader` has left: the members of its session, without anybody's who got the number later; those of `marked`, whatever
/// session they are in; and all that these have started.
///
/// A session's number is not given to a new process while a member lives. So if a process has that number and is not the
/// leader, the session is empty. A process that has cleared its own environment, left the session, and outlived its parent is not found.
pub fn orphans(leader: ProcessId, marked: &[ProcessId]) -> Vec<ProcessId> {
    let all = all();
    let reused = all.iter().any(|stat| stat.pid == leader.pid && stat.start_ticks != leader.start_ticks);
    let is_member = |stat: &Stat| !reused && stat.session == leader.pid && stat.pid != leader.pid;
    let roots: Vec<Stat> = all.iter().filter(|stat| !stat.zombie && (is_member(stat) || marked.contains(&stat.id()))).copied().collect();
    let mut found: Vec<ProcessId> = roots.iter().map(Stat::id).collect();
    for root in roots {
        for process in descendants_in(&all, root.pid).iter().map(Stat::id) {
            if !found.contains(&process) {
                found.push(process);
            }
        }
    }
    found
}

/// Everybody who was started with the variable `mark` (`NAME=value`). To be asked as the user they run as: another one's environment
/// can't be read, by root neither without `CAP_SYS_PTRACE`.
pub fn marked(mark: &str) -> Vec<ProcessId> {
    let has_it = |pid: i32| {
        std::fs::read(format!("/proc/{pid}/environ")).is_ok_and(|environ| environ.split(|byte| *byte == 0).any(|variable| variable == mark.as_bytes()))
    };
    all().iter().filter(|stat| !stat.zombie && has_it(stat.pid)).map(Stat::id).collect()
}

/// Signals that very process; true if it was there.
pub fn signal(process: ProcessId, signal: Signal) -> bool {
    let Some(pid) = Pid::from_raw(process.pid) else { return false };
    // From here on the number can't be given to another process behind our back.
    let Ok(handle) = pidfd_open(pid, PidfdFlags::empty()) else { return false };
    lives(process) && pidfd_send_signal(&handle, signal).is_ok()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    fn line(pid: i32, name: &str, state: &str, parent: i32, session: i32, start: u64) -> String {
        format!("{pid} ({name}) {state} {parent} {pid} {session} 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 1 0 {start} 1000 10")
    }

    #[test]
    fn a_hostile_name_does_not_shift_the_fields() {
        for name in ["sh", "a b", "x) R 1 1 1 (", ") Z 7 7 7"] {
            let stat = Stat::parse(&line(42, name, "S", 7, 9, 77)).unwrap();
            assert_eq!(stat, Stat { pid: 42, parent: 7, group: 42, session: 9, zombie: false, start_ticks: 77 }, "{name}");
        }
        assert!(Stat::parse("garbage").is_none());
    }

    #[test]
    fn descendants_are_found_at_every_depth_and_zombies_are_passed_over_but_not_their_children() {
        let stats: Vec<Stat> = [(2, "S", 1), (3, "Z", 2), (4, "S", 3), (5, "S", 1), (6, "S", 4)]
            .iter()
            .map(|(pid, state, parent)| Stat::parse(&line(*pid, "p", state, *parent, 2, 0)).unwrap())
            .collect();
        let mut found: Vec<i32> = descendants_in(&stats, 2).iter().map(|process| process.pid).collect();
        found.sort_unstable();
        assert_eq!(found, [4, 6]);
    }

    #[test]
    fn this_process_lives_and_its_namesake_of_another_time_does_not() {
        let pid = i32::try_from(std::process::id()).unwrap();
        let start_ticks = start_ticks(pid).unwrap();
        assert!(lives(ProcessId { pid, start_ticks }));
        assert!(!lives(ProcessId { pid, start_ticks: start_ticks + 1 }));
        assert!(!signal(ProcessId { pid, start_ticks: start_ticks + 1 }, Signal::KILL));
    }
}
