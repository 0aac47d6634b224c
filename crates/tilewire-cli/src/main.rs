//! The command line of tilewire. Exit status: 0 holds, 1 does not, 2 usage.

mod args;
mod bench;
mod check;
mod demo;
mod emit;
mod file_limit;
mod fingerprints;
/// Hooks that write down the fields of their context, and what those are by definition: as the library's own tests have them.
#[path = "../../tilewire/tests/support/fields.rs"]
#[allow(dead_code, missing_docs)]
mod form;
mod handwritten;
mod kernels;
mod launch;
mod memory;
/// Random programs: those of the library's own tests, so that an engine can be verified on any machine.
#[path = "../../tilewire/tests/support/programs/mod.rs"]
#[allow(dead_code, missing_docs)]
mod programs;
mod run;
mod soak;
mod topo;
mod verify;

use anyhow::{Error, Result};
use args::Command;
use std::io::{ErrorKind, Write, stderr, stdout};
use std::process::ExitCode;

fn main() -> ExitCode {
    file_limit::make_it_an_error();
    let command = match Command::parse(std::env::args_os().skip(1)) {
        Ok(command) => command,
        Err(reason) => return usage(&reason),
    };
    match obey(command) {
        Ok(code) => code,
        // Whoever read our output has seen enough.
        Err(error) if error.downcast_ref::<std::io::Error>().is_some_and(|e| e.kind() == ErrorKind::BrokenPipe) => {
            ExitCode::SUCCESS
        }
        Err(error) => {
            _ = writeln!(
                stderr(),
                "tilewire: {}{error:#}",
                if is_of_stdout(&error) { "cannot write to stdout: " } else { "" }
            );
            ExitCode::FAILURE
        }
    }
}

/// Errors of all other files say which.
fn is_of_stdout(error: &Error) -> bool {
    error.chain().count() == 1 && error.is::<std::io::Error>()
}

fn obey(command: Command) -> Result<ExitCode> {
    match command {
        Command::Help => stdout().write_all(args::HELP.as_bytes())?,
        Command::Version => writeln!(stdout(), "tilewire {}", env!("CARGO_PKG_VERSION"))?,
        Command::Demo => demo::demo()?,
        Command::Topo => topo::topo()?,
        Command::Doctor => return topo::doctor(),
        Command::Emit { kernel, parts } => emit::emit(kernel, parts)?,
        Command::EmitCollective { run, parts } => emit::emit_collective(&run, parts)?,
        Command::Verify(request) => return verify::verify(&request),
        Command::Check(task) => return check::check(&task),
        Command::Fingerprints(request) => return fingerprints::fingerprints(&request),
        Command::Launch(job) => return launch::launch(&job),
        Command::Run(wanted) => return run::run(&wanted),
        Command::Soak(wanted) => return soak::soak(&wanted),
        Command::Bench(bench) => bench.run()?,
    }
    // What stays in the buffer would be written at the very end, where nobody learns that it cannot be. The commands above that return
    // write whole lines, which do not stay; and after a launch, a thread that nobody reads from may hold stdout for as long as it likes.
    stdout().flush()?;
    Ok(ExitCode::SUCCESS)
}

fn usage(reason: &str) -> ExitCode {
    // Not the whole help: what is wrong would be out of sight.
    _ = writeln!(stderr(), "tilewire: {reason}\n`tilewire --help` says what there is");
    ExitCode::from(2)
}
