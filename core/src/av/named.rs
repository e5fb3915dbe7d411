//! Named tables: a file that the processes of a user share, found by the names of the domain and of the address vector.
//!
//! Two bytes of the file are locked, by open file description, so that a lock goes with its holder however that ends. Every
//! holder of the table has the first byte for reading: who gets it for writing is alone, makes what is there anew or takes it
//! away. The second byte is the turn of writers.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use nix::errno::Errno as Sys;
use nix::fcntl::{FcntlArg, fcntl};

use super::arena::Arena;
use super::attr::Model;
use super::head::{self, Head, Word};
use super::listing::{self, Listing};
use super::store::Store;
use super::words::{ALIGN, Words};
use crate::error::{Errno, Error, Result};
use crate::types::FiAddr;

/// Marks a file that is ready, with the version of its layout.
const MAGIC: u64 = u64::from_be_bytes(*b"ferro av") ^ 4;

/// Longest part of a file's name that says which address vector it is, in bytes.
const MOST_NAME: usize = 180;

/// Where such files are: in memory, where the system has a place for that.
const FOLDERS: [&str; 2] = ["/dev/shm", "/tmp"];

const PRESENCE: i64 = 0;
const TURN: i64 = 1;

/// What to open.
pub(super) struct Wanted<'a> {
    pub(super) domain: &'a str,
    pub(super) name: &'a str,
    pub(super) count: usize,
    /// What the addresses of a new one are like.
    pub(super) model: Model,
    /// The application's address for the mapping, 0 for any.
    pub(super) map_addr: u64,
    /// It is to be there.
    pub(super) existing: bool,
}

/// The file of a named table. It goes with the last holder.
pub(super) struct Named {
    path: PathBuf,
    file: File,
    /// There when the table is open.
    listing: OnceLock<Listing>,
}

impl Named {
    /// Opens a table, or makes it where there is none.
    ///
    /// # Errors
    ///
    /// `ENOENT`: there is none, and none is to be made. `EACCES`: the file is not this user's alone. What the system lacks.
    pub(super) fn open(wanted: &Wanted<'_>) -> Result<(Self, Store)> {
        let folder = FOLDERS.iter().map(Path::new).find(|f| f.is_dir());
        let path = folder
            .unwrap_or(Path::new("/tmp"))
            .join(file_name(wanted.domain, wanted.name));
        let failed = |e: &io::Error| {
            Error::from_io(e, "open", format!("named address vector {}", wanted.name))
        };
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
            let path = path.clone();
            let named = Self {
                path,
                file,
                listing: OnceLock::new(),
            };
            if let Some((named, store)) = named.enter(wanted, &failed)? {
                named.map_listing(wanted, &store).map_err(|e| failed(&e))?;
                return Ok((named, store));
            }
        }
    }

    /// Comes in, or says with `None` that the file was one of the past.
    fn enter(
        self,
        wanted: &Wanted<'_>,
        failed: &dyn Fn(&io::Error) -> Error,
    ) -> Result<Option<(Self, Store)>> {
        let about = self.file.metadata().map_err(|e| failed(&e))?;
        if about.uid() != nix::unistd::geteuid().as_raw() || about.mode() & 0o777_7077 != 0o100_000
        {
            let object = format!("named address vector {}", wanted.name);
            return Err(Error::new(Errno::EACCES, "open", object)
                .mend(format!("{} is not this user's alone", self.path.display())));
        }
        if self
            .lock(PRESENCE, Lock::Write, false)
            .map_err(|e| failed(&e))?
        {
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
            self.lock(PRESENCE, Lock::Read, true)
                .map_err(|e| failed(&e))?;
            return Ok(Some((self, store)));
        }
        // Waits for who makes it.
        self.lock(PRESENCE, Lock::Read, true)
            .map_err(|e| failed(&e))?;
        let length = self.file.metadata().map_err(|e| failed(&e))?.len();
        if length < ALIGN || !self.is_in_place() {
            return Ok(None);
        }
        let head = Words::shared(&self.file, 0, head::SHARED_BYTES).map_err(|e| failed(&e))?;
        let head = Head(head);
        if head.word(Word::Magic).load(Acquire) != MAGIC {
            return Ok(None);
        }
        let file = self.file.try_clone().map_err(|e| failed(&e))?;
        let store = Store::over(head, Arena::File(file));
        Ok(Some((self, store)))
    }

    fn create(&self, wanted: &Wanted<'_>) -> Result<Store> {
        let failed = |e: io::Error| {
            Error::from_io(&e, "make", format!("named address vector {}", wanted.name))
        };
        let end = listing::OFFSET + listing::BYTES;
        self.file.set_len(end).map_err(failed)?;
        let head = Words::shared(&self.file, 0, head::SHARED_BYTES).map_err(failed)?;
        let head = Head(head);
        head.word(Word::End).store(end, Relaxed);
        head.word(Word::Model).store(wanted.model.number(), Relaxed);
        let file = self.file.try_clone().map_err(failed)?;
        let store = Store::create(head, Arena::File(file), wanted.count)?;
        store.head().word(Word::Magic).store(MAGIC, Release);
        Ok(store)
    }

    /// Maps the array of addresses: where this process wants it, or else where the first process has it.
    fn map_listing(&self, wanted: &Wanted<'_>, store: &Store) -> io::Result<()> {
        let of_first = store.head().word(Word::MapAddr);
        let at = match wanted.map_addr {
            0 => of_first.load(Relaxed),
            given => given,
        };
        let listing = Listing::map(&self.file, at as usize)?;
        let _ = of_first.compare_exchange(0, listing.at() as u64, Relaxed, Relaxed);
        let _ = self.listing.set(listing);
        Ok(())
    }

    /// Where the application finds the array of addresses.
    pub(super) fn map_addr(&self) -> usize {
        self.listing.get().map_or(0, Listing::at)
    }

    /// Writes an entry's address in the array.
    pub(super) fn list(&self, entry: u32, addr: FiAddr) {
        if let Some(listing) = self.listing.get() {
            listing.list(entry, addr);
        }
    }

    /// Waits for the turn to write.
    ///
    /// # Errors
    ///
    /// When the system can not lock.
    pub(super) fn take_turn(&self) -> Result<()> {
        self.lock(TURN, Lock::Write, true)
            .map(|_| ())
            .map_err(|e| Error::from_io(&e, "lock", "named address vector"))
    }

    /// Takes the turn to write if nobody has it.
    pub(super) fn try_turn(&self) -> bool {
        self.lock(TURN, Lock::Write, false).unwrap_or(false)
    }

    /// Leaves it to the next.
    pub(super) fn end_turn(&self) {
        let _ = self.lock(TURN, Lock::None, false);
    }

    /// Whether the file is the one that others find by its name.
    fn is_in_place(&self) -> bool {
        let found = std::fs::symlink_metadata(&self.path);
        match (found, self.file.metadata()) {
            (Ok(found), Ok(own)) => (found.dev(), found.ino()) == (own.dev(), own.ino()),
            _ => false,
        }
    }

    /// Says whether the lock was had; `false` only without `wait`.
    fn lock(&self, byte: i64, lock: Lock, wait: bool) -> io::Result<bool> {
        let kind = match lock {
            Lock::Read => nix::libc::F_RDLCK,
            Lock::Write => nix::libc::F_WRLCK,
            Lock::None => nix::libc::F_UNLCK,
        };
        let lock = nix::libc::flock {
            l_type: kind as i16,
            l_whence: nix::libc::SEEK_SET as i16,
            l_start: byte,
            l_len: 1,
            l_pid: 0,
        };
        loop {
            let done = match wait {
                true => fcntl(&self.file, FcntlArg::F_OFD_SETLKW(&lock)),
                false => fcntl(&self.file, FcntlArg::F_OFD_SETLK(&lock)),
            };
            match done {
                Ok(_) => return Ok(true),
                Err(Sys::EINTR) => {}
                Err(Sys::EAGAIN | Sys::EACCES) if !wait => return Ok(false),
                Err(e) => return Err(io::Error::from_raw_os_error(e as i32)),
            }
        }
    }
}

#[derive(Clone, Copy)]
enum Lock {
    Read,
    Write,
    None,
}

impl Drop for Named {
    /// Nobody takes a file away but who has its first byte for writing, so it is still in place afterwards if it was before.
    fn drop(&mut self) {
        let _ = self.lock(PRESENCE, Lock::None, false);
        if let Ok(true) = self.lock(PRESENCE, Lock::Write, false) {
            if self.is_in_place() {
                let _ = std::fs::remove_file(&self.path);
            }
        }
    }
}

/// The name of the file: who, which domain, which address vector.
fn file_name(domain: &str, name: &str) -> String {
    let user = nix::unistd::geteuid();
    let mut text = format!("ferro-av-{user}-");
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
