//! The form of all errors of the library: a table with a message for each case, and a `Debug` that prints the message.
//!
//! ```text
//! errors! {
//!     enum Fault {
//!         NoDriver => "no CUDA driver on this machine",
//!         Argument { param, what } => "argument {param}: {what}",
//!         Timeout { after, .. } => ("waited {:.1} s", after.as_secs_f64()),
//!         Missing { ranks } => { |f| ranks.iter().try_for_each(|rank| write!(f, " {rank}")) },
//!     }
//!     source { Driver { source, .. } => source.source() }
//!     from { PtxError => Ptx }
//! }
//! ```
//!
//! A row is an arm of a `match`. Its right side is a format string, a format string with arguments, or code that writes
//! to `f`. [`messages!`] makes `Display` from such a table. [`errors!`] also makes the type an error whose `Debug` is
//! its `Display`: `unwrap()`, `expect()` and `fn main() -> Result` print `Debug`, and people read that output. Code
//! should compare variants and fields instead.
//!
//! `source` says how the error chain continues. If the message already quotes an error, it continues with that error's
//! own source. `from` lists variants that hold nothing but another error.

/// Implements `Display` from a table of messages.
macro_rules! messages {
    ($kind:ident $name:ident { $($pattern:pat $(if $guard:expr)? => $message:tt),* $(,)? }) => {
        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                messages!(@names $kind $name);
                match self {
                    $($pattern $(if $guard)? => messages!(@say f $message),)*
                }
            }
        }
    };
    (@names enum $name:ident) => { #[allow(unused_imports)] use $name::*; };
    (@names struct $name:ident) => {};
    (@say $f:ident { |$to:ident| $($code:tt)* }) => {{ let $to = $f; $($code)* }};
    (@say $f:ident ($text:literal, $($argument:tt)*)) => { write!($f, $text, $($argument)*) };
    (@say $f:ident $text:literal) => { write!($f, $text) };
}

/// Implements an error from a table of messages.
macro_rules! errors {
    (
        $kind:ident $name:ident { $($table:tt)* }
        $(source { $($pattern:pat => $source:expr),* $(,)? })?
        $(from { $($from:ty => $variant:ident),* $(,)? })?
    ) => {
        messages! { $kind $name { $($table)* } }

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                std::fmt::Display::fmt(self, f)
            }
        }

        impl std::error::Error for $name {
            $(fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
                messages!(@names $kind $name);
                match self {
                    $($pattern => $source,)*
                    _ => None,
                }
            })?
        }

        $($(impl From<$from> for $name {
            fn from(error: $from) -> Self {
                $name::$variant(error)
            }
        })*)?
    };
}

#[cfg(all(test, feature = "check"))]
mod tests {
    use crate::check::{EvalError, Location};
    use crate::collective::{RunError, map};
    use crate::cuda::CudaError;
    use crate::ir::{SourceLine, VerifyErrors};
    use crate::ptx::PtxError;
    use crate::tensor::Tensor;
    use crate::transport::{
        AbortCode, BootstrapError, Cause, DescriptorLimit, LocalBufferError, Rank, SegmentError, TransferError,
        TransportError, WorldError,
    };
    use crate::vm::{LaunchError, PrepareError, Who};
    use std::error::Error;
    use std::path::Path;

    #[test]
    fn what_main_prints_of_an_error_is_its_message() {
        let cause = Cause { code: AbortCode::Died, rank: 1, reason: 0 };
        let by = Box::new(Who { rank: 0, block: 0, role: "main".into() });
        let (out, inp) = (Tensor::<f32>::zeros(4), Tensor::<f32>::zeros(3));
        let RunError::Build(misuse) = map(&out, &inp).trace().unwrap_err() else { panic!("a misuse of hooks") };
        assert!(misuse.to_string().contains('\n'), "a list: {misuse}");
        let samples: Vec<Box<dyn Error>> = vec![
            Box::new(EvalError::ZeroFlag {
                by: Location { at: SourceLine::caller(), rank: 0, block: 0, role: "main".into(), copy: 0 },
            }),
            Box::new(RunError::from(misuse.clone())),
            Box::new(misuse),
            Box::new(RunError::from(TransferError::Broken { cause })),
            Box::new(CudaError::NoDriver),
            Box::new(VerifyErrors(Vec::new())),
            Box::new(PtxError::TooManyWarps { warps: 33, most: 32 }),
            Box::new(BootstrapError::KeyTaken { key: "k".into() }),
            Box::new(DescriptorLimit { needed: 3000, allowed: 1024 }),
            Box::new(LocalBufferError::Unknown { handle: 3 }),
            Box::new(SegmentError::Unsupported),
            Box::new(TransferError::EmptySlot),
            Box::new(TransportError::Broken { cause }),
            Box::new(WorldError::RankFailed { rank: Rank::new(1), source: "no file".into() }),
            Box::new(LaunchError::NegativeCount { count: -1, by, at: SourceLine::caller() }),
            Box::new(PrepareError::Invalid("a fault".into())),
        ];
        for error in samples {
            assert_eq!(format!("{error:?}"), error.to_string());
            assert_eq!(format!("{error:#?}"), error.to_string());
        }
    }

    #[test]
    fn every_error_of_the_library_is_made_here() {
        for file in files(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src")) {
            let text = std::fs::read_to_string(&file).unwrap();
            let by_hand = ["impl std::error::Error for ", "impl Error for "];
            let found = text.lines().find(|line| by_hand.iter().any(|head| line.starts_with(head)));
            assert_eq!(found, None, "{}: use errors!, so that Debug is the message", file.display());
        }
    }

    fn files(folder: &Path) -> Vec<std::path::PathBuf> {
        let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        let (folders, files): (Vec<_>, Vec<_>) = entries.partition(|path| path.is_dir());
        files.into_iter().chain(folders.iter().flat_map(|folder| self::files(folder))).collect()
    }
}
