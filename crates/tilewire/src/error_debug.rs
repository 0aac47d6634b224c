//! `Debug` of a public error is its `Display`: `unwrap()`, `expect()` and `fn main() -> Result` print `Debug`, and what they print is for
//! people. Code compares variants and fields.

use std::fmt;

macro_rules! debug_is_display {
    ($($(#[$condition:meta])* $error:path;)*) => {
    $(
        $(#[$condition])*
        impl fmt::Debug for $error {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }
    )*

        /// The names of all of them.
        #[cfg(test)]
        const ERRORS: &[&str] = &[$($(#[$condition])* stringify!($error)),*];
    };
}

debug_is_display! {
    crate::check::EvalError;
    crate::check::NotResident;
    crate::collective::RunError;
    crate::cuda::CudaError;
    crate::hook::BuildError;
    crate::ir::VerifyError;
    crate::ir::VerifyErrors;
    crate::ptx::PtxError;
    crate::tensor::AccessError;
    crate::tensor::NoMemory;
    crate::tensor::Shortage;
    crate::transport::BootstrapError;
    crate::transport::DescriptorLimit;
    #[cfg(target_os = "linux")]
    crate::transport::GoodbyeError;
    crate::transport::LocalBufferError;
    crate::transport::SegmentError;
    crate::transport::TransferError;
    crate::transport::TransportError;
    crate::transport::WorldError;
    crate::vm::LaunchError;
    crate::vm::PrepareError;
}

#[cfg(test)]
mod tests {
    use super::ERRORS;
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
    fn every_error_of_the_library_is_in_the_list() {
        let mut found = 0;
        for file in files(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src")) {
            let text = std::fs::read_to_string(&file).unwrap();
            for line in text.lines().filter(|line| line.starts_with("impl ") && line.contains("Error for ")) {
                let (head, rest) = line.split_once(" for ").unwrap();
                if !head.ends_with("std::error::Error") && head != "impl Error" {
                    continue;
                }
                let name = rest.split(|c: char| !c.is_alphanumeric()).next().unwrap();
                let listed = ERRORS.iter().any(|error| error.rsplit("::").next().map(str::trim) == Some(name));
                assert!(listed, "{name} of {} is missing in debug_is_display!", file.display());
                found += 1;
            }
        }
        assert_eq!(found, ERRORS.len(), "{ERRORS:?}");
    }

    fn files(folder: &Path) -> Vec<std::path::PathBuf> {
        let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        let (folders, files): (Vec<_>, Vec<_>) = entries.partition(|path| path.is_dir());
        files.into_iter().chain(folders.iter().flat_map(|folder| self::files(folder))).collect()
    }
}
