//! Named tables: a file that the processes of a user share, found by the names of the domain and of
//! the address vector.
//!
//! Two bytes of the file are locked, by open file description, so that a lock goes with its holder
//! however that ends. Every holder of the table has the first byte for reading: a process that gets
//! it for writing is alone, and makes the file anew or removes it. The second byte is the turn of
//! writers.
//!
//! No process waits for another for ever (`docs/adr/0046`): while a process is stopped in its turn,
//! others read, and those that want the turn get an error after a while that names the process.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::time::Duration;

use super::arena::PieceArena;
use super::attr::AddrModel;
use super::file_lock::{Lock, PRESENCE, Pauses, TURN, try_lock};
use super::head::{self, HeadWord, TableHead};
use super::leftovers;
use super::listing::{self, AddrListing};
use super::store::Store;
use super::words::{ALIGN, MappedWords};
use ferrofabric_contracts::error::{Errno, Error, Result};
use ferrofabric_contracts::types::FiAddr;
use ferrofabric_system::file_size;
use ferrofabric_system::forked::{Birth, Unshared};
use ferrofabric_system::sync::Mutex;

/// Marks a file that is ready, with the version of its layout.
const MAGIC: u64 = u64::from_be_bytes(*b"ferro av") ^ 6;

/// Longest part of a file's name that says which address vector it is, in bytes.
const MOST_NAME: usize = 180;

/// Where such files are: in memory, where the system has a place for that.
const FOLDERS: [&str; 2] = ["/dev/shm", "/tmp"];

/// How long a writer waits while the process that has the turn changes nothing. A turn lasts
/// milliseconds.
const PATIENCE: Duration = Duration::from_secs(5);

/// The named table to open.
pub(super) struct NamedTableRequest<'a> {
    pub(super) domain: &'a str,
    pub(super) name: &'a str,
    pub(super) count: usize,
    /// The make-up of the addresses of a new one.
    pub(super) model: AddrModel,
    /// The application's address for the mapping, 0 for any.
    pub(super) map_addr: u64,
    /// It is to be there.
    pub(super) existing: bool,
}

/// The file of a named table. It goes with the last holder.
pub(super) struct NamedTable {
    path: PathBuf,
    turns: TurnFile,
    file: File,
    birth: Birth,
    /// There when the table is open.
    listing: OnceLock<AddrListing>,
    standstill: Mutex<Standstill>,
    /// Entries that are to be given back in the next turn.
    left: Mutex<Vec<u32>>,
}

/// A second open of the file, only for the lock of the turn. A child of fork does not share it, so the
/// turn of a killed process ends while a child of it lives.
struct TurnFile {
    // It ends before the file is closed.
    _unshared: Unshared,
    file: File,
}

impl TurnFile {
    /// Opens the file that `of` is. `None`: its name is that of another one by now.
    fn open(path: &Path, of: &File) -> io::Result<Option<Self>> {
        let opened = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(nix::libc::O_CLOEXEC | nix::libc::O_NOFOLLOW)
            .open(path);
        let file = match opened {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened?,
        };
        let [one, other] = [of.metadata()?, file.metadata()?];
        // A child that is forked right here shares it, and has no lock: none is taken yet.
        let _unshared = Unshared::new(file.as_raw_fd(), of.as_raw_fd());
        let is_it = (one.dev(), one.ino()) == (other.dev(), other.ino());
        Ok(is_it.then_some(Self { _unshared, file }))
    }
}

/// The turns of others that this process has seen while it waited for its own.
struct Standstill {
    /// The state of the turns, and for how long it has not changed.
    seen: u64,
    waited: Duration,
    patience: Duration,
}

impl NamedTable {
    /// Opens a table, or makes it where there is none.
    ///
    /// # Errors
    ///
    /// `ENOENT`: there is none, and none is to be made. `EACCES`: the file is not this user's
    /// alone. `EPROTO`: others have it open with another layout. `ENOSPC`: the folder is full.
    /// `ETIMEDOUT`: another process is making it, and does not come to an end. The part that the
    /// system lacks.
    pub(super) fn open(wanted: &NamedTableRequest<'_>) -> Result<(Self, Store)> {
        let folder = FOLDERS.iter().map(Path::new).find(|f| f.is_dir());
        let folder = folder.unwrap_or(Path::new("/tmp"));
        let path = folder.join(file_name(wanted.domain, wanted.name));
        let failed = |e: &io::Error| failed(e, "open", wanted, &path);
        loop {
            let opened = OpenOptions::new()
                .read(true)
                .write(true)
                .create(!wanted.existing)
                .truncate(false)
                .mode(0o600)
                .custom_flags(nix::libc::O_CLOEXEC | nix::libc::O_NOFOLLOW)
                .open(&path);
            let file = opened.map_err(|e| failed(&e))?;
            let Some(turns) = TurnFile::open(&path, &file).map_err(|e| failed(&e))? else {
                continue;
            };
            let named = Self {
                path: path.clone(),
                turns,
                file,
                birth: Birth::here(),
                listing: OnceLock::new(),
                standstill: Mutex::new(Standstill {
                    seen: 0,
                    waited: Duration::ZERO,
                    patience: PATIENCE,
                }),
                left: Mutex::new(Vec::new()),
            };
            if let Some((named, store)) = named.enter(wanted, &failed)? {
                named.map_listing(wanted, &store).map_err(|e| failed(&e))?;
                leftovers::remove(folder, &prefix());
                return Ok((named, store));
            }
        }
    }

    /// Comes in, or says with `None` that the file was one of the past.
    fn enter(
        self,
        wanted: &NamedTableRequest<'_>,
        failed: &dyn Fn(&io::Error) -> Error,
    ) -> Result<Option<(Self, Store)>> {
        let about = self.file.metadata().map_err(|e| failed(&e))?;
        if !leftovers::is_own(&about) {
            let object = format!("named address vector {}", wanted.name);
            return Err(Error::new(Errno::EACCES, "open", object)
                .mend(format!("{} is not this user's alone", self.path.display())));
        }
        if try_lock(&self.file, PRESENCE, Lock::Write).map_err(|e| failed(&e))? {
            let left_behind = self.file.metadata().map_err(|e| failed(&e))?.len() != 0;
            if left_behind || wanted.existing {
                // Dropping it takes it away.
                return match wanted.existing {
                    true => Err(failed(&io::Error::from_raw_os_error(Errno::ENOENT.0))),
                    false => Ok(None),
                };
            }
            if !self.is_in_place() {
                return Ok(None);
            }
            let store = self.create(wanted)?;
            try_lock(&self.file, PRESENCE, Lock::Read).map_err(|e| failed(&e))?;
            return Ok(Some((self, store)));
        }
        // Another process is making it, or looks whether anybody has it.
        let (mut pauses, mut waited) = (Pauses::new(), Duration::ZERO);
        while !try_lock(&self.file, PRESENCE, Lock::Read).map_err(|e| failed(&e))? {
            if waited >= PATIENCE {
                let late = io::Error::from_raw_os_error(Errno::ETIMEDOUT.0);
                return Err(failed(&late).mend(
                    "another process is making it, and is stopped: let it go on, or end it",
                ));
            }
            waited += pauses.pause();
        }
        let length = self.file.metadata().map_err(|e| failed(&e))?.len();
        if length < ALIGN || !self.is_in_place() {
            return Ok(None);
        }
        let head =
            MappedWords::shared(&self.file, 0, head::SHARED_BYTES).map_err(|e| failed(&e))?;
        let head = TableHead(head);
        match head.word(HeadWord::Magic).load(Acquire) {
            MAGIC => {}
            // The process that was making it has given up.
            0 => return Ok(None),
            _ => {
                let other = io::Error::from_raw_os_error(Errno::EPROTO.0);
                return Err(failed(&other)
                    .mend("processes with another version of Ferrofabric have it open: end them"));
            }
        }
        let file = self.file.try_clone().map_err(|e| failed(&e))?;
        let store = Store::over(head, PieceArena::File(file));
        Ok(Some((self, store)))
    }

    fn create(&self, wanted: &NamedTableRequest<'_>) -> Result<Store> {
        let failed = |e: io::Error| failed(&e, "make", wanted, &self.path);
        let end = listing::OFFSET + listing::BYTES;
        file_size::without_signal(|| self.file.set_len(end)).map_err(failed)?;
        let arena = PieceArena::File(self.file.try_clone().map_err(failed)?);
        arena.allocate(0, ALIGN).map_err(failed)?;
        let head = MappedWords::shared(&self.file, 0, head::SHARED_BYTES).map_err(failed)?;
        let head = TableHead(head);
        head.word(HeadWord::End).store(end, Relaxed);
        head.word(HeadWord::Model)
            .store(wanted.model.number(), Relaxed);
        let store = Store::create(head, arena, wanted.count)?;
        store.head().word(HeadWord::Magic).store(MAGIC, Release);
        Ok(store)
    }

    /// Maps the array of addresses: where this process wants it, or else where the first process
    /// has it.
    fn map_listing(&self, wanted: &NamedTableRequest<'_>, store: &Store) -> io::Result<()> {
        let of_first = store.head().word(HeadWord::MapAddr);
        let at = match wanted.map_addr {
            0 => of_first.load(Relaxed),
            given => given,
        };
        let listing = AddrListing::map(&self.file, at as usize)?;
        let _ = of_first.compare_exchange(0, listing.at() as u64, Relaxed, Relaxed);
        let _ = self.listing.set(listing);
        Ok(())
    }

    /// Where the application finds the array of addresses.
    pub(super) fn map_addr(&self) -> usize {
        self.listing.get().map_or(0, AddrListing::at)
    }

    /// Writes an entry's address in the array.
    pub(super) fn list(&self, entry: u32, addr: FiAddr) {
        if let Some(listing) = self.listing.get() {
            listing.list(entry, addr);
        }
    }

    /// Waits for the turn to write; of the threads of a process, one at a time.
    ///
    /// # Errors
    ///
    /// `ETIMEDOUT`: the process that has it changes nothing. `EPERM`: this process has inherited
    /// the table. When the system can not lock.
    pub(super) fn take_turn(&self, head: &TableHead) -> Result<()> {
        let refuse = |errno| {
            let object = format!("the turn to change {}", self.path.display());
            Error::new(errno, "take", object)
        };
        if !self.birth.is_this_process() {
            return Err(refuse(Errno::EPERM)
                .mend("the table is that of the process that forked this one: open it here, too"));
        }
        let mut pauses = Pauses::new();
        let mut standstill = self.standstill.lock();
        loop {
            let had = try_lock(&self.turns.file, TURN, Lock::Write);
            if had.map_err(|e| refuse(Errno(e.raw_os_error().unwrap_or(Errno::EIO.0))))? {
                standstill.waited = Duration::ZERO;
                begin_turn(head);
                return Ok(());
            }
            let now = turns_and_changes(head);
            if now != standstill.seen {
                standstill.seen = now;
                standstill.waited = Duration::ZERO;
            }
            if standstill.waited >= standstill.patience {
                let holder = head.word(HeadWord::Writer).load(Relaxed);
                return Err(refuse(Errno::ETIMEDOUT).mend(format!(
                    "process {holder} has the turn and has changed nothing for {:?}: let it go on, or end it",
                    standstill.patience
                )));
            }
            standstill.waited += pauses.pause();
        }
    }

    /// Takes the turn to write if nobody has it.
    pub(super) fn try_turn(&self, head: &TableHead) -> bool {
        let had = self.birth.is_this_process()
            && try_lock(&self.turns.file, TURN, Lock::Write).unwrap_or(false);
        if had {
            begin_turn(head);
        }
        had
    }

    /// Leaves it to the next.
    pub(super) fn end_turn(&self, head: &TableHead) {
        head.word(HeadWord::Writer).store(0, Relaxed);
        count_turn(head);
        let _ = try_lock(&self.turns.file, TURN, Lock::None);
    }

    /// Keeps entries that can not be given back now for the next turn.
    pub(super) fn leave(&self, entries: impl Iterator<Item = u32>) {
        self.left.lock().extend(entries);
    }

    /// Entries that are to be given back in this turn.
    pub(super) fn take_left(&self) -> Vec<u32> {
        std::mem::take(&mut *self.left.lock())
    }

    pub(super) fn has_left(&self) -> bool {
        !self.left.lock().is_empty()
    }

    /// How long a writer waits while the process that has the turn changes nothing.
    #[cfg(test)]
    pub(super) fn set_patience(&self, patience: Duration) {
        self.standstill.lock().patience = patience;
    }

    /// Whether the file is the one that others find by its name.
    fn is_in_place(&self) -> bool {
        leftovers::is_in_place(&self.path, &self.file)
    }
}

impl Drop for NamedTable {
    /// Nobody takes a file away but who has its first byte for writing, so it is still in place
    /// afterwards if it was before. A child of fork has its parent's locks, and leaves them to
    /// that.
    fn drop(&mut self) {
        if !self.birth.is_this_process() {
            return;
        }
        let _ = try_lock(&self.file, PRESENCE, Lock::None);
        leftovers::remove_one(&self.path, &self.file);
    }
}

fn begin_turn(head: &TableHead) {
    head.word(HeadWord::Writer)
        .store(std::process::id().into(), Relaxed);
    count_turn(head);
}

/// Turns begin and end one after the other, so nobody else counts.
fn count_turn(head: &TableHead) {
    let turns = head.word(HeadWord::Turns);
    turns.store(turns.load(Relaxed).wrapping_add(1), Relaxed);
}

/// Differs as soon as any process has begun or ended a turn, or changed an entry.
fn turns_and_changes(head: &TableHead) -> u64 {
    let count = |word| head.word(word).load(Relaxed);
    count(HeadWord::Turns).wrapping_add(count(HeadWord::Changes))
}

fn failed(
    e: &io::Error,
    doing: &'static str,
    wanted: &NamedTableRequest<'_>,
    path: &Path,
) -> Error {
    let error = Error::from_io(e, doing, format!("named address vector {}", wanted.name));
    match error.errno() {
        Errno::ENOSPC => error.mend(format!("there is no room for {}", path.display())),
        _ => error,
    }
}

/// The beginning of the names of all files of this user.
fn prefix() -> String {
    format!("ferro-av-{}-", nix::unistd::geteuid())
}

/// The name of the file, of user, domain and address vector.
fn file_name(domain: &str, name: &str) -> String {
    let mut text = prefix();
    for part in [domain, "/", name] {
        for byte in part.bytes() {
            match byte {
                b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' => text.push(byte.into()),
                _ => text.push_str(&format!("%{byte:02x}")),
            }
        }
    }
    if text.len() > MOST_NAME {
        let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
        });
        text.truncate(MOST_NAME);
        text.push_str(&format!("+{hash:016x}"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn different_names_are_different_files() {
        let long = "x".repeat(300);
        let all = [
            ("a", "b"),
            ("a/b", ""),
            ("a", "/b"),
            ("a%", "b"),
            ("", "a/b"),
            ("a", &long),
            ("b", &long),
            ("a", "../b"),
        ];
        let names: std::collections::HashSet<_> = all
            .iter()
            .map(|(domain, name)| file_name(domain, name))
            .collect();
        assert_eq!(names.len(), all.len());
        for name in names {
            assert!(name.len() < 255 && !name.contains('/'), "{name}");
        }
    }
}
