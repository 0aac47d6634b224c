//! Offers: how peers come to reach memory that one rank has made alone.
//!
//! ```text
//!   ranks are      an offer says                              a peer that accepts it gets
//!   threads        a ticket of their meeting                  another handle to the same bytes
//!   processes      process, descriptor, identity and size     a mapping of the same file
//!                  of a sealed file; the place in it
//! ```
//! Among threads that is memory that tilewire has allocated for one of them: its owner may make a detour through it
//! after a rebind, which would overwrite what others write there. So foreign memory is not offered, nor what is shared.
//!
//! Among processes that is memory of `link.zeros()` and of windows. A peer opens the file through `/proc`, which the
//! system grants to processes of the same user. It maps nothing but the very file that the offer means, sealed against
//! shrinking, so accesses never fault. If it cannot, it says so, and the ranks use staging.

#[cfg(target_os = "linux")]
use super::mapping::Mapping;
use super::rendezvous::Shared;
use crate::tensor::Memory;
#[cfg(target_os = "linux")]
use crate::tensor::ReachableFrom;
#[cfg(target_os = "linux")]
use std::cell::RefCell;
use std::fmt;
use std::sync::Arc;

/// What a rank tells the others about memory of its own, so that they can reach it. It stands as long as it lives.
pub struct Offer {
    text: String,
    kept: Option<Kept>,
}

/// An offer among threads.
struct Kept {
    meeting: Arc<super::meeting::Meeting>,
    ticket: u64,
}

impl Offer {
    /// The words of the offer, without a line break, `|` or `;`.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// True if a peer may be unable to accept such an offer.
    pub(crate) fn may_fail(text: &str) -> bool {
        !text.starts_with(THREAD)
    }
}

impl Drop for Offer {
    fn drop(&mut self) {
        if let Some(Kept { meeting, ticket }) = &self.kept {
            meeting.withdraw(*ticket);
        }
    }
}

impl fmt::Debug for Offer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Offer({})", self.text)
    }
}

const THREAD: &str = "thread ";
#[cfg(target_os = "linux")]
const FILE: &str = "file ";

/// The offers of others that a transport has accepted.
#[derive(Default)]
pub(crate) struct Accepted {
    /// The files that are mapped, so that the next collective over the same memory maps nothing.
    #[cfg(target_os = "linux")]
    files: RefCell<Vec<(File, Arc<Mapping>)>>,
}

impl Accepted {
    /// Offers memory to the other ranks. `None` if they cannot reach it.
    pub(crate) fn offer(world: &Shared, memory: &Memory) -> Option<Offer> {
        let reach = memory.reachable_from();
        if !reach.host || !reach.devices.is_empty() || memory.is_lent() || !memory.is_contiguous() {
            return None;
        }
        // A peer of a failed launch may still write it.
        if memory.is_exposed() {
            return None;
        }
        if let Some(meeting) = world.meeting_handle() {
            // Others may write what is not private at any time. A launch that makes a detour through it after a rebind
            // would overwrite that.
            if !memory.is_private() {
                return None;
            }
            // SAFETY: in the host's reach and not lent. Peers use it in launches that this rank has permitted (READY or
            // DONE) and whose end it awaits, in a launch of its own: so its thread touches the bytes before that
            // permission (release) and after that end (acquire) only. That wait has no limit (`loans`).
            let ticket = meeting.offer(unsafe { memory.for_other_threads() });
            let text = format!("{THREAD}{ticket} {}", memory.bytes());
            return Some(Offer { text, kept: Some(Kept { meeting, ticket }) });
        }
        #[cfg(target_os = "linux")]
        {
            // A launch that fails may have to expose the memory, and host code may have references to its elements.
            if memory.has_cells() {
                return None;
            }
            let mapping = memory.kept_by::<Mapping>()?;
            let file = File::of(mapping)?;
            let offset = memory.start().addr().get().checked_sub(mapping.start().addr().get())?;
            let File { process, descriptor, device, node, total } = file;
            let bytes = memory.bytes();
            let text = format!("{FILE}{process} {descriptor} {device} {node} {total} {offset} {bytes}");
            Some(Offer { text, kept: None })
        }
        #[cfg(not(target_os = "linux"))]
        None
    }

    /// The memory that another rank offers, if this rank reaches it.
    pub(crate) fn accept(&self, world: &Shared, text: &str) -> Option<Memory> {
        let number = |word: Option<&str>| word?.parse::<u64>().ok();
        if let Some(rest) = text.strip_prefix(THREAD) {
            let mut words = rest.split(' ');
            let (ticket, bytes) = (number(words.next())?, number(words.next())?);
            let memory = world.meeting()?.offered(ticket)?;
            return (memory.bytes() as u64 == bytes).then_some(memory);
        }
        #[cfg(target_os = "linux")]
        {
            let words: Option<Vec<u64>> = text.strip_prefix(FILE)?.split(' ').map(|word| number(Some(word))).collect();
            let [process, descriptor, device, node, total, offset, bytes] = words?[..] else { return None };
            self.map(&File { process, descriptor, device, node, total }, offset as usize, bytes as usize)
        }
        #[cfg(not(target_os = "linux"))]
        None
    }

    #[cfg(target_os = "linux")]
    fn map(&self, file: &File, offset: usize, bytes: usize) -> Option<Memory> {
        use super::mapping::HEADER;
        let mut files = self.files.borrow_mut();
        // The memory of a file that its owner has closed is held for nobody.
        files.retain(|(file, _)| file.is_open());
        let known = files.iter().find(|(known, _)| known == file).map(|(_, mapping)| mapping.clone());
        let mapping = match known {
            Some(mapping) => mapping,
            None => {
                let mapping = Arc::new(file.map()?);
                files.push((file.clone(), mapping.clone()));
                mapping
            }
        };
        let end = offset.checked_add(bytes)?;
        if offset < HEADER || end as u64 > file.total {
            return None;
        }
        // Inside of the mapping, whose size is that of the file.
        let start = std::ptr::NonNull::new(mapping.start().as_ptr().wrapping_add(offset))?;
        // SAFETY: the bytes lie in the mapping, which is sealed against shrinking, initialised by its owner, and lives
        // as long as the handle that is passed along. Nobody holds references into it.
        Some(unsafe { Memory::shared(start, bytes, ReachableFrom::HOST, mapping) })
    }
}

/// A file of a process, by its descriptor there and its identity.
#[cfg(target_os = "linux")]
#[derive(Clone, PartialEq, Eq)]
struct File {
    process: u64,
    descriptor: u64,
    device: u64,
    node: u64,
    total: u64,
}

#[cfg(target_os = "linux")]
impl File {
    fn of(mapping: &Mapping) -> Option<File> {
        use std::os::fd::AsRawFd;
        use std::os::unix::fs::MetadataExt;
        let (file, total) = mapping.file()?;
        let is = std::fs::File::from(file.try_clone_to_owned().ok()?).metadata().ok()?;
        let (process, descriptor) = (u64::from(std::process::id()), file.as_raw_fd() as u64);
        Some(File { process, descriptor, device: is.dev(), node: is.ino(), total: total as u64 })
    }

    fn path(&self) -> String {
        format!("/proc/{}/fd/{}", self.process, self.descriptor)
    }

    fn is(&self, found: &std::fs::Metadata) -> bool {
        use std::os::unix::fs::MetadataExt;
        (found.dev(), found.ino(), found.len()) == (self.device, self.node, self.total)
    }

    /// True if its owner still has it.
    fn is_open(&self) -> bool {
        std::fs::metadata(self.path()).is_ok_and(|found| self.is(&found))
    }

    fn map(&self) -> Option<Mapping> {
        use std::os::fd::AsFd;
        let opened = std::fs::File::options().read(true).write(true).open(self.path()).ok()?;
        // The number may have been given to another file or process in between.
        if !self.is(&opened.metadata().ok()?) {
            return None;
        }
        super::memfd::map(opened.as_fd(), usize::try_from(self.total).ok()?, false).ok()
    }
}
