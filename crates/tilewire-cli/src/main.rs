//! The command line of tilewire. Exit status: 0 holds, 1 does not, 2 usage, 3 could not be checked.

mod bench;
mod check;
mod cli;
mod demo;
mod emit;
mod file_limit;
mod fingerprints;
mod handwritten;
mod kernels;
mod launch;
mod memory;
mod progress;
mod run;
mod soak;
mod table;
mod topo;
mod verify;

use anyhow::{Error, Result};
use cli::Command;
use std::io::{ErrorKind, Write, stderr, stdout};
use std::process::ExitCode;

fn main() -> ExitCode {
    file_limit::make_it_an_error();
    match Command::parse(std::env::args_os().skip(1)) {
        Ok(command) => status(obey(command)),
        Err(refusal) if refusal.use_stderr() => {
            _ = write!(stderr(), "{}", refusal.render());
            ExitCode::from(2)
        }
        // Help or the version was requested.
        Err(answer) => status(print(answer.render().to_string().as_bytes())),
    }
}

/// The exit status of a command, whose error is printed.
fn status(ended: Result<ExitCode>) -> ExitCode {
    match ended {
        Ok(code) => code,
        // The reader of our output has seen enough.
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

fn print(text: &[u8]) -> Result<ExitCode> {
    stdout().write_all(text)?;
    stdout().flush()?;
    Ok(ExitCode::SUCCESS)
}

/// Errors of all other files name them.
fn is_of_stdout(error: &Error) -> bool {
    error.chain().count() == 1 && error.is::<std::io::Error>()
}

fn obey(command: Command) -> Result<ExitCode> {
    match command {
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
        Command::Completions(shell) => return print(&cli::completions(shell)),
    }
    // Flush here: data left in the buffer would be written at the very end, where an error goes unnoticed. The commands
    // above that return write whole lines, which are not buffered; and after a launch, a thread whose output no process
    // reads may hold stdout indefinitely.
    stdout().flush()?;
    Ok(ExitCode::SUCCESS)
}
