//! The errors of this crate, with the provider's own messages.

use std::fmt;

/// An error of libfabric, or the absence of the library.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum FabricError {
    /// The library cannot be opened.
    Absent {
        /// The name of the file that was tried.
        name: String,
        /// The message of the dynamic linker.
        what: String,
    },
    /// The library lacks a function.
    Symbol {
        /// The file.
        library: String,
        /// The function.
        name: &'static str,
    },
    /// The library is older than what is supported.
    TooOld {
        /// The file.
        library: String,
        /// The version of the library.
        version: (u32, u32),
    },
    /// No provider matches the query.
    NoProvider {
        /// The provider's name and the address, if the query has them.
        asked: String,
        /// The error number.
        code: i32,
        /// The meaning of the error number.
        words: String,
    },
    /// A call failed.
    Call {
        /// The function.
        call: &'static str,
        /// The provider.
        provider: String,
        /// The error number.
        code: i32,
        /// The meaning of the error number.
        words: String,
    },
    /// The address cannot be one of this provider's.
    Address {
        /// The provider.
        provider: String,
        /// The size of the address in bytes.
        bytes: usize,
    },
    /// The bytes are outside a registered region.
    Range {
        /// The offset of the first byte.
        offset: usize,
        /// The number of bytes.
        bytes: usize,
        /// The size of the region in bytes.
        region: usize,
    },
    /// There are more bytes than the provider takes in one call.
    TooLong {
        /// The number of bytes.
        bytes: usize,
        /// The most bytes that the provider takes.
        most: usize,
    },
    /// The region was registered with another domain than the endpoint's.
    Foreign,
    /// The library is too old for memory of devices.
    NoDmaBufs {
        /// The version of the library.
        version: (u32, u32),
    },
    /// The provider was not asked for memory of devices, or has no access to it.
    NoDeviceMemory {
        /// The provider.
        provider: String,
    },
    /// The string contains a zero byte.
    Name {
        /// The string.
        name: String,
    },
}

/// An operation that failed after it was posted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CompletionError {
    /// The error number.
    pub code: i32,
    /// The meaning of the error number.
    pub words: String,
    /// The provider's own number.
    pub provider_code: i32,
    /// The provider's own message; empty if it has none.
    pub provider_words: String,
}

impl FabricError {
    /// The error number of a call that failed.
    pub fn code(&self) -> Option<i32> {
        match self {
            FabricError::Call { code, .. } | FabricError::NoProvider { code, .. } => Some(*code),
            _ => None,
        }
    }
}

impl fmt::Display for FabricError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FabricError::Absent { name, what } => write!(
                f,
                "{name} cannot be opened ({what}): install libfabric (Debian and Ubuntu: apt install libfabric1; RHEL and \
                 Fedora: dnf install libfabric; conda: conda install -c conda-forge libfabric), or name the file in \
                 TILEWIRE_LIBFABRIC"
            ),
            FabricError::Symbol { library, name } => {
                write!(
                    f,
                    "{library} has no function {name}: it is not libfabric, or it is damaged; name another file in TILEWIRE_LIBFABRIC"
                )
            }
            FabricError::TooOld { library, version: (major, minor) } => {
                let (least_major, least_minor) = crate::library::LEAST;
                write!(
                    f,
                    "{library} is libfabric {major}.{minor}: at least {least_major}.{least_minor} is needed; install a \
                     newer one, or name another file in TILEWIRE_LIBFABRIC"
                )
            }
            FabricError::NoProvider { asked, code, words } => {
                write!(f, "libfabric has no provider for {asked}: {words} ({code})")
            }
            FabricError::Call { call, provider, code, words } => {
                write!(f, "{call} of provider {provider} failed: {words} ({code})")
            }
            FabricError::Address { provider, bytes } => {
                write!(
                    f,
                    "an address of {bytes} bytes cannot be one of provider {provider}: do both ends use the same provider, \
                     and both IPv4 or both IPv6 addresses?"
                )
            }
            FabricError::Range { offset, bytes, region } => {
                write!(f, "{bytes} bytes at offset {offset} are outside the region, which has {region} bytes")
            }
            FabricError::TooLong { bytes, most } => {
                write!(f, "{bytes} bytes in one call: this provider takes at most {most}; write them in parts")
            }
            FabricError::Foreign => f.write_str(
                "the region belongs to another domain than the endpoint: register the memory with this endpoint",
            ),
            FabricError::NoDmaBufs { version: (major, minor) } => {
                let (least_major, least_minor) = crate::library::DMA_BUFS;
                write!(
                    f,
                    "libfabric {major}.{minor} cannot register memory of devices by dma-bufs: at least \
                     {least_major}.{least_minor} is needed"
                )
            }
            FabricError::NoDeviceMemory { provider } => write!(
                f,
                "{provider} was not opened for memory of devices: register memory of the host, or ask for a provider \
                 that has FI_HMEM"
            ),
            FabricError::Name { name } => {
                write!(f, "{name:?} contains a zero byte, so it cannot be passed to libfabric")
            }
        }
    }
}

impl fmt::Debug for FabricError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for FabricError {}

impl fmt::Display for CompletionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let CompletionError { code, words, provider_code, provider_words } = self;
        write!(f, "{words} ({code}")?;
        if *provider_code != 0 && *provider_code != *code {
            write!(f, ", provider's {provider_code}")?;
        }
        f.write_str(")")?;
        match provider_words.is_empty() || provider_words == words {
            true => Ok(()),
            false => write!(f, ": {provider_words}"),
        }
    }
}

impl std::error::Error for CompletionError {}
