//! A disk in memory that crashes on command, for crash tests of the journal and its daemons.
//! `kill -9` is not a test of durability, because the page cache survives it.
//!
//! Steps of a crash test:
//! 1. run the tested code once on a new [`CrashDisk`], and get the number of changes to the disk
//!    from [`CrashDisk::operations`];
//! 2. for every n below that number, run the code again on a new disk with
//!    [`CrashDisk::crash_after`]`(n)`, and record what was acknowledged;
//! 3. for each [`Survive`], open the log on [`CrashDisk::after_crash`] and check that everything
//!    acknowledged is there.
//!
//! The disk guarantees what POSIX guarantees and nothing more: bytes survive if their file was
//! synced after they were written; names survive if the folder was synced after they changed. With
//! [`Survive::Seeded`], each unsynced sector and name change survives or not, independently: files
//! lose sectors in the middle, renames and removals happen out of order. Only operations that
//! change the disk are counted. Reads are not counted, but fail too after the crash.
//!
//! [`CrashDisk::fail_reads`] makes bad sectors: reads of these sectors, and writes in place to
//! them, fail with EIO. [`CrashDisk::damage`] changes synced bytes, makes sectors unreadable, and
//! writes to the wrong place, all at random. [`CrashDisk::call_before`] lets a test delay syncs, or
//! do something else in the middle of a read.
//!
//! Not simulated: time. [`CrashDisk::simulated`] leaves that to an [`Executor`].

use crate::{
    disk::{Disk, ReadFile, WriteFile},
    executor::Executor,
    format::{SPLIT_MIX_STEP, split_mix},
};
use rustix::io::Errno;
use std::{
    collections::{BTreeMap, HashMap},
    io,
    ops::Range,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// Unsynced bytes are lost or kept in units of this size, aligned to the start of the file.
pub const SECTOR_BYTES: usize = 64;

/// What survives a crash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Survive {
    /// Everything written so far: the process has died, the machine has not.
    Everything,
    /// Only what was synced: power loss, worst case.
    SyncedOnly,
    /// Everything synced, and a part of the other writes that is chosen at random from the seed:
    /// power loss with a real cache.
    Seeded(u64),
}

/// A fault of a disk that loses or changes what was synced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Damage {
    /// A bit of a file has changed.
    BitRot,
    /// A sector of a file cannot be read.
    BadSector,
    /// The next write goes to a file and an offset at random. Where it should have gone, the file
    /// has zeros, or what was there before.
    MisdirectedWrite,
}

/// Number of changes to a [`CrashDisk`], by kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// `create` of a file.
    pub creates: u64,
    /// `write` to a file.
    pub writes: u64,
    /// `truncate` of a file.
    pub truncates: u64,
    /// `sync` of a file.
    pub syncs: u64,
    /// `rename`.
    pub renames: u64,
    /// `link`.
    pub links: u64,
    /// `remove`.
    pub removes: u64,
    /// `sync_folder`.
    pub folder_syncs: u64,
}

/// An operation before which a function can be called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Call<'a> {
    /// A file with this name is opened for reading.
    Open(&'a str),
    /// A file is synced.
    Sync,
}

type Hook = Arc<dyn Fn(Call<'_>) + Send + Sync>;

/// A disk in memory that fails as requested. Clones share the same disk.
#[derive(Clone, Default)]
pub struct CrashDisk {
    state: Arc<Mutex<State>>,
    hook: Arc<Mutex<Option<Hook>>>,
    executor: Executor,
}

#[derive(Default)]
struct State {
    inodes: HashMap<u64, Inode>,
    next_inode: u64,
    names: BTreeMap<String, u64>,
    names_synced: BTreeMap<String, u64>,
    /// Name changes since the last `sync_folder`, in order.
    names_pending: Vec<NameChange>,
    counts: Counts,
    operations: u64,
    crash_after: Option<u64>,
    fail_at: Option<u64>,
    /// The seed of the place to which the next write goes.
    misdirect: Option<u64>,
    crashed: bool,
}

#[derive(Default, Clone)]
struct Inode {
    current: Vec<u8>,
    synced: Vec<u8>,
    /// Unreadable byte ranges.
    unreadable: Vec<Range<usize>>,
}

#[derive(Clone)]
struct NameChange {
    unlink: Option<String>,
    link: Option<(String, u64)>,
}

impl NameChange {
    fn apply(&self, names: &mut BTreeMap<String, u64>) {
        if let Some(name) = &self.unlink {
            names.remove(name);
        }
        if let Some((name, inode)) = &self.link {
            names.insert(name.clone(), *inode);
        }
    }
}

impl CrashDisk {
    /// Creates an empty disk without failures.
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates an empty disk of a simulation, whose work `executor` runs. So do the disks after its
    /// crashes.
    pub fn simulated(executor: Executor) -> Self {
        Self { executor, ..Self::default() }
    }

    /// Creates a disk with these files, all of them synced.
    pub fn with_files<N: Into<String>, B: Into<Vec<u8>>>(files: impl IntoIterator<Item = (N, B)>) -> Self {
        let disk = Self::new();
        for (name, bytes) in files {
            disk.set_file(&name.into(), bytes);
        }
        disk
    }

    /// Creates or replaces a file, and marks it as synced. Not counted as a change.
    pub fn set_file(&self, name: &str, bytes: impl Into<Vec<u8>>) {
        let mut state = self.lock();
        let bytes = bytes.into();
        let inode = state.new_inode(Inode { current: bytes.clone(), synced: bytes, unreadable: Vec::new() });
        state.names.insert(name.to_owned(), inode);
        state.names_synced.insert(name.to_owned(), inode);
    }

    /// Returns all files with their contents, synced or not. Works also after a crash.
    pub fn files(&self) -> BTreeMap<String, Vec<u8>> {
        let state = self.lock();
        state.names.iter().map(|(name, inode)| (name.clone(), state.inodes[inode].current.clone())).collect()
    }

    /// Lets `n` more changes succeed; then every operation fails permanently.
    pub fn crash_after(&self, n: u64) {
        let mut state = self.lock();
        state.crash_after = Some(state.operations + n);
    }

    /// Makes only the change after the next `n` fail, with an I/O error.
    pub fn fail_after(&self, n: u64) {
        let mut state = self.lock();
        state.fail_at = Some(state.operations + n);
    }

    /// Makes these bytes of a file unreadable from now on, also after a rename or a crash of the
    /// process.
    pub fn fail_reads(&self, name: &str, bytes: Range<usize>) {
        let mut state = self.lock();
        let inode = state.names[name];
        state.inode(inode).unreadable.push(bytes);
    }

    /// Damages a file that is chosen by `seed`, or the next write.
    pub fn damage(&self, damage: Damage, seed: u64) {
        let mut state = self.lock();
        if damage == Damage::MisdirectedWrite {
            state.misdirect = Some(seed);
            return;
        }
        let mut random = SplitMix(seed);
        let Some((inode, at)) = state.choose_byte(&mut random) else { return };
        let inode = state.inode(inode);
        match damage {
            Damage::BitRot => inode.overwrite(at, &[inode.current[at] ^ 1 << random.below(8)]),
            Damage::BadSector | Damage::MisdirectedWrite => {
                let start = at / SECTOR_BYTES * SECTOR_BYTES;
                inode.unreadable.push(start..start + SECTOR_BYTES);
            }
        }
    }

    /// Cancels what was to fail or go wrong later.
    pub fn cancel_faults(&self) {
        let mut state = self.lock();
        (state.crash_after, state.fail_at, state.misdirect) = (None, None, None);
    }

    /// Calls `hook` before these operations from now on, in the thread of the caller. The disk can be
    /// used meanwhile.
    pub fn call_before(&self, hook: impl Fn(Call<'_>) + Send + Sync + 'static) {
        *self.hook.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(hook));
    }

    fn before(&self, call: Call<'_>) {
        let hook = self.hook.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(hook) = hook {
            hook(call);
        }
    }

    /// Returns whether an operation has failed because of the crash.
    pub fn crashed(&self) -> bool {
        self.lock().crashed
    }

    /// Returns the number of changes so far.
    pub fn operations(&self) -> u64 {
        self.lock().operations
    }

    /// Returns the number of changes so far, by kind.
    pub fn counts(&self) -> Counts {
        self.lock().counts
    }

    /// Returns the disk that a restart finds after a crash at this moment. Does not change `self`.
    ///
    /// After [`Survive::Everything`], unsynced data is still unsynced: a restart that does not sync
    /// it can lose it to a second crash.
    #[must_use]
    pub fn after_crash(&self, survive: Survive) -> Self {
        let state = self.lock();
        let disk = Self::simulated(self.executor.clone());
        match survive {
            Survive::Everything => *disk.lock() = state.after_process_crash(),
            Survive::SyncedOnly => {
                for (name, inode) in &state.names_synced {
                    disk.set_file(name, state.inodes[inode].synced.clone());
                }
            }
            Survive::Seeded(seed) => {
                let mut random = SplitMix(seed);
                let mut names = state.names_synced.clone();
                for change in state.names_pending.iter().filter(|_| random.coin()) {
                    change.apply(&mut names);
                }
                for (name, inode) in &names {
                    disk.set_file(name, state.inodes[inode].after_power_loss(&mut random));
                }
            }
        }
        disk
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, count: fn(&mut Counts) -> &mut u64) -> io::Result<MutexGuard<'_, State>> {
        let mut state = self.lock();
        state.check_not_crashed()?;
        if state.crash_after.is_some_and(|limit| state.operations >= limit) {
            state.crashed = true;
            return Err(crash_error());
        }
        let failing = state.fail_at == Some(state.operations);
        state.operations += 1;
        *count(&mut state.counts) += 1;
        if failing {
            return Err(io::Error::other("injected I/O error"));
        }
        Ok(state)
    }
}

fn crash_error() -> io::Error {
    io::Error::other("the disk has crashed")
}

impl State {
    fn check_not_crashed(&self) -> io::Result<()> {
        if self.crashed { Err(crash_error()) } else { Ok(()) }
    }

    fn after_process_crash(&self) -> Self {
        Self {
            inodes: self.inodes.clone(),
            next_inode: self.next_inode,
            names: self.names.clone(),
            names_synced: self.names_synced.clone(),
            names_pending: self.names_pending.clone(),
            ..Self::default()
        }
    }

    fn new_inode(&mut self, inode: Inode) -> u64 {
        self.next_inode += 1;
        self.inodes.insert(self.next_inode, inode);
        self.next_inode
    }

    fn find(&self, name: &str) -> io::Result<u64> {
        self.check_not_crashed()?;
        self.names.get(name).copied().ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "no such file"))
    }

    /// Returns a byte of a file.
    fn choose_byte(&self, random: &mut SplitMix) -> Option<(u64, usize)> {
        let with_bytes = self.names.values().filter(|inode| !self.inodes[inode].current.is_empty());
        let with_bytes: Vec<u64> = with_bytes.copied().collect();
        let inode = *with_bytes.get(random.below(with_bytes.len().max(1) as u64) as usize)?;
        Some((inode, random.below(self.inodes[&inode].current.len() as u64) as usize))
    }

    /// If a write is to be misdirected, writes `bytes` somewhere else and returns true.
    fn misdirect(&mut self, bytes: &[u8]) -> bool {
        let Some(seed) = self.misdirect.take() else { return false };
        if let Some((inode, at)) = self.choose_byte(&mut SplitMix(seed)) {
            self.inode(inode).overwrite(at / SECTOR_BYTES * SECTOR_BYTES, bytes);
        }
        true
    }

    fn change_names(&mut self, change: NameChange) {
        change.apply(&mut self.names);
        self.names_pending.push(change);
    }

    fn inode(&mut self, inode: u64) -> &mut Inode {
        self.inodes.get_mut(&inode).expect("inodes are never removed")
    }
}

impl Inode {
    /// Changes bytes on the disk, as far as the file is long.
    fn overwrite(&mut self, at: usize, bytes: &[u8]) {
        for content in [&mut self.current, &mut self.synced] {
            let end = content.len().min(at + bytes.len());
            if at < end {
                content[at..end].copy_from_slice(&bytes[..end - at]);
            }
        }
    }

    /// Returns the contents after a power loss: everything synced, and a random part of the rest.
    fn after_power_loss(&self, random: &mut SplitMix) -> Vec<u8> {
        if self.current.len() == self.synced.len() {
            // The file was overwritten in place: each sector survives independently.
            let mut bytes = self.synced.clone();
            for (old, new) in bytes.chunks_mut(SECTOR_BYTES).zip(self.current.chunks(SECTOR_BYTES)) {
                if old != new && random.coin() {
                    old.copy_from_slice(new);
                }
            }
            return bytes;
        }
        if self.current.len() < self.synced.len() || !self.current.starts_with(&self.synced) {
            // The file was truncated, and perhaps written again. Either all of that has reached the
            // disk, or nothing has.
            return if random.coin() { self.current.clone() } else { self.synced.clone() };
        }
        let unsynced = self.current.len() - self.synced.len();
        let saved = random.below(unsynced as u64 + 1) as usize;
        let mut bytes = self.current[..self.synced.len() + saved].to_vec();
        if random.coin() {
            // The file has its new length, but some sectors were not written and read as zeros.
            let mut at = self.synced.len();
            while at < bytes.len() {
                let end = ((at / SECTOR_BYTES + 1) * SECTOR_BYTES).min(bytes.len());
                if random.coin() {
                    bytes[at..end].fill(0);
                }
                at = end;
            }
        }
        bytes
    }
}

impl Disk for CrashDisk {
    fn list(&self) -> io::Result<Vec<String>> {
        let state = self.lock();
        state.check_not_crashed()?;
        Ok(state.names.keys().cloned().collect())
    }

    fn create(&self, name: &str) -> io::Result<Box<dyn WriteFile>> {
        let mut state = self.change(|counts| &mut counts.creates)?;
        let inode = state.new_inode(Inode::default());
        state.change_names(NameChange { unlink: None, link: Some((name.to_owned(), inode)) });
        Ok(Box::new(OpenFile { disk: self.clone(), inode }))
    }

    fn append(&self, name: &str) -> io::Result<Box<dyn WriteFile>> {
        let inode = self.lock().find(name)?;
        Ok(Box::new(OpenFile { disk: self.clone(), inode }))
    }

    fn overwrite(&self, name: &str) -> io::Result<Box<dyn WriteFile>> {
        self.append(name)
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn ReadFile>> {
        self.before(Call::Open(name));
        let inode = self.lock().find(name)?;
        Ok(Box::new(OpenFile { disk: self.clone(), inode }))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut state = self.change(|counts| &mut counts.renames)?;
        let inode = state.find(from)?;
        state.change_names(NameChange { unlink: Some(from.to_owned()), link: Some((to.to_owned(), inode)) });
        Ok(())
    }

    fn link(&self, from: &str, to: &str) -> io::Result<()> {
        let mut state = self.change(|counts| &mut counts.links)?;
        let inode = state.find(from)?;
        state.change_names(NameChange { unlink: None, link: Some((to.to_owned(), inode)) });
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut state = self.change(|counts| &mut counts.removes)?;
        state.find(name)?;
        state.change_names(NameChange { unlink: Some(name.to_owned()), link: None });
        Ok(())
    }

    fn sync_folder(&self) -> io::Result<()> {
        let mut state = self.change(|counts| &mut counts.folder_syncs)?;
        state.names_synced = state.names.clone();
        state.names_pending.clear();
        Ok(())
    }

    fn free_bytes(&self) -> io::Result<u64> {
        self.lock().check_not_crashed()?;
        Ok(1 << 40)
    }

    fn executor(&self) -> Executor {
        self.executor.clone()
    }
}

struct OpenFile {
    disk: CrashDisk,
    inode: u64,
}

impl WriteFile for OpenFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut state = self.disk.change(|counts| &mut counts.writes)?;
        let is_elsewhere = state.misdirect(bytes);
        let current = &mut state.inode(self.inode).current;
        if is_elsewhere {
            current.resize(current.len() + bytes.len(), 0);
        } else {
            current.extend_from_slice(bytes);
        }
        Ok(())
    }

    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mut state = self.disk.change(|counts| &mut counts.writes)?;
        if state.misdirect(bytes) {
            return Ok(());
        }
        let inode = state.inode(self.inode);
        let beyond = || io::Error::other("a write in place beyond the end of the file");
        let start = usize::try_from(offset).map_err(|_| beyond())?;
        let end = start + bytes.len();
        if inode.unreadable.iter().any(|bad| bad.start < end && start < bad.end) {
            // A disk reads a sector before it overwrites a part of it.
            return Err(Errno::IO.into());
        }
        inode.current.get_mut(start..end).ok_or_else(beyond)?.copy_from_slice(bytes);
        Ok(())
    }

    fn truncate(&mut self, len: u64) -> io::Result<()> {
        let mut state = self.disk.change(|counts| &mut counts.truncates)?;
        state.inode(self.inode).current.truncate(len as usize);
        Ok(())
    }

    fn sync(&mut self) -> io::Result<()> {
        self.disk.before(Call::Sync);
        let mut state = self.disk.change(|counts| &mut counts.syncs)?;
        let inode = state.inode(self.inode);
        if inode.current.starts_with(&inode.synced) {
            inode.synced.extend_from_slice(&inode.current[inode.synced.len()..]);
        } else {
            inode.synced.clone_from(&inode.current);
        }
        Ok(())
    }
}

impl ReadFile for OpenFile {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let mut state = self.disk.lock();
        state.check_not_crashed()?;
        let inode = state.inode(self.inode);
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        let rest = inode.current.get(start..).unwrap_or_default();
        let mut len = rest.len().min(buffer.len());
        for bad in &inode.unreadable {
            if bad.contains(&start) {
                return Err(Errno::IO.into());
            }
            if bad.start > start {
                len = len.min(bad.start - start);
            }
        }
        buffer[..len].copy_from_slice(&rest[..len]);
        Ok(len)
    }

    fn length(&self) -> io::Result<u64> {
        let mut state = self.disk.lock();
        state.check_not_crashed()?;
        Ok(state.inode(self.inode).current.len() as u64)
    }
}

/// Generates random numbers from a seed, the same on every machine.
struct SplitMix(u64);

impl SplitMix {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(SPLIT_MIX_STEP);
        split_mix(self.0)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    fn coin(&mut self) -> bool {
        self.next() & 1 == 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_synced_bytes_and_names_survive_power_loss() {
        let disk = CrashDisk::new();
        let mut file = disk.create("a").unwrap();
        file.write(b"one").unwrap();
        file.sync().unwrap();
        assert!(disk.after_crash(Survive::SyncedOnly).files().is_empty(), "the name was not synced");
        disk.sync_folder().unwrap();
        file.write(b"two").unwrap();
        disk.rename("a", "b").unwrap();
        let synced = disk.after_crash(Survive::SyncedOnly).files();
        assert_eq!(synced, BTreeMap::from([("a".to_owned(), b"one".to_vec())]));
        let all = disk.after_crash(Survive::Everything).files();
        assert_eq!(all, BTreeMap::from([("b".to_owned(), b"onetwo".to_vec())]));
    }

    #[test]
    fn seeded_survivors_differ_are_repeatable_and_keep_synced_bytes() {
        let disk = CrashDisk::new();
        let mut file = disk.create("a").unwrap();
        file.write(&[7; 100]).unwrap();
        file.sync().unwrap();
        disk.sync_folder().unwrap();
        file.write(&[8; 1000]).unwrap();
        let outcomes: Vec<_> =
            (0..50).map(|seed| disk.after_crash(Survive::Seeded(seed)).files()["a"].clone()).collect();
        assert!(outcomes.iter().all(|bytes| bytes.starts_with(&[7; 100])));
        assert!(outcomes.iter().any(|bytes| bytes.len() > 100 && bytes.contains(&0)), "lost sectors");
        assert!(outcomes.iter().any(|bytes| bytes.len() > 100 && !bytes.contains(&0)), "torn tails");
        assert_eq!(outcomes[3], disk.after_crash(Survive::Seeded(3)).files()["a"]);
    }

    #[test]
    fn damage_changes_synced_bytes_and_survives_a_crash() {
        let bytes = vec![7; 1000];
        let new = || {
            let disk = CrashDisk::with_files([("a", bytes.clone())]);
            let mut file = disk.create("b").unwrap();
            file.write(&[8; 100]).unwrap();
            file.sync().unwrap();
            disk.sync_folder().unwrap();
            (disk, file)
        };
        let (disk, _) = new();
        let before = disk.files();
        disk.damage(Damage::BitRot, 1);
        let after = disk.after_crash(Survive::SyncedOnly).files();
        let bits = |name: &str| before[name].iter().zip(&after[name]).map(|(a, b)| (a ^ b).count_ones());
        assert_eq!(bits("a").chain(bits("b")).sum::<u32>(), 1);
        let (disk, mut file) = new();
        // The first seed with another file.
        let seed = (0..1000).find(|seed| {
            let (disk, mut file) = new();
            disk.damage(Damage::MisdirectedWrite, *seed);
            file.write(&[9; 64]).unwrap();
            disk.files()["a"] != bytes
        });
        disk.damage(Damage::MisdirectedWrite, seed.unwrap());
        file.write(&[9; 64]).unwrap();
        file.write(&[6; 64]).unwrap();
        file.sync().unwrap();
        let files = disk.after_crash(Survive::SyncedOnly).files();
        assert!(files["a"].windows(40).any(|part| part == [9; 40]), "the write is elsewhere");
        assert_eq!(files["b"], [vec![8; 100], vec![0; 64], vec![6; 64]].concat());
        let (disk, _) = new();
        disk.damage(Damage::BadSector, 1);
        let is_readable = |name: &str| {
            let file = disk.open(name).unwrap();
            (0..file.length().unwrap()).all(|at| file.read_at(at, &mut [0]).is_ok())
        };
        assert!(!is_readable("a") || !is_readable("b"));
    }

    #[test]
    fn all_operations_fail_after_a_crash_but_only_one_after_fail_after() {
        let disk = CrashDisk::new();
        disk.fail_after(1);
        let mut file = disk.create("a").unwrap();
        assert!(file.write(b"x").is_err());
        file.write(b"y").unwrap();
        disk.crash_after(1);
        file.sync().unwrap();
        assert!(!disk.crashed());
        assert!(file.sync().is_err() && disk.crashed());
        assert!(disk.list().is_err() && disk.open("a").is_err() && disk.sync_folder().is_err());
        assert_eq!(disk.operations(), 4, "the failing write counts, the crash does not");
        assert_eq!(disk.counts().writes, 2);
    }
}
