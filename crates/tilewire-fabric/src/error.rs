//! What can go wrong, with the provider's words.

use std::fmt;

/// An error of libfabric, or its absence.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum FabricError {
    /// The library cannot be opened.
    Absent {
        /// What was tried.
        name: String,
        /// What the dynamic linker says.
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
        /// Its version.
        version: (u32, u32),
    },
    /// No provider has what was asked for.
    NoProvider {
        /// The provider's name and the address, as far as they were asked for.
        asked: String,
        /// The error number.
        code: i32,
        /// Its meaning.
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
        /// Its meaning.
        words: String,
    },
    /// An address that is not one of this provider's.
    Address {
        /// The provider.
        provider: String,
        /// Bytes of it.
        bytes: usize,
    },
    /// Bytes outside of a registered region.
    Range {
        /// The first byte.
        offset: usize,
        /// How many.
        bytes: usize,
        /// Bytes of the region.
        region: usize,
    },
    /// More bytes than the provider takes in one call.
    TooLong {
        /// How many.
        bytes: usize,
        /// The most.
        most: usize,
    },
    /// A region that was registered with another domain than the endpoint's.
    Foreign,
    /// A string with a zero byte in it.
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
    /// Its meaning.
    pub words: String,
    /// The provider's own number.
    pub provider_code: i32,
    /// The provider's own words; empty if it has none.
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
                write!(f, "{library} has no function {name}: it is not libfabric, or a damaged one")
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
                write!(f, "an address of {bytes} bytes is none of provider {provider}")
            }
            FabricError::Range { offset, bytes, region } => {
                write!(f, "bytes {offset} to {offset} + {bytes} are outside of a region of {region} bytes")
            }
            FabricError::TooLong { bytes, most } => {
                write!(f, "{bytes} bytes in one call: this provider takes at most {most}")
            }
            FabricError::Foreign => f.write_str("a region of another domain than the endpoint's"),
            FabricError::Name { name } => write!(f, "{name:?} has a zero byte in it"),
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
