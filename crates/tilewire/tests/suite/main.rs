//! Tests that need no separate process: hooks and their language, the IR and its evaluator, the checker, the CPU
//! engine, PTX, and the rules of the sources. They are one program, because each further program links the whole
//! library and compiles its generic code again.

mod access;
mod checker;
#[cfg(feature = "cuda")]
mod cuda_engine;
#[cfg(feature = "cuda")]
mod cuda_rectangles;
#[cfg(feature = "cuda")]
mod cuda_streams;
#[cfg(feature = "cuda")]
mod cuda_windows;
mod engine_differential;
mod engine_forms;
mod engine_launch;
mod engine_limits;
mod evaluator;
mod guide;
mod hook_language;
mod hook_library;
mod hook_misuse;
mod layering;
mod links;
mod malformed;
mod mesh_grids;
#[cfg(feature = "dlpack")]
mod numpy;
mod prose;
mod ptx_ahead;
mod ptx_assembly;
mod ptx_busy;
mod ptx_differential;
mod ptx_held;
mod ptx_posts;
mod ptx_puts;
mod ptx_rectangles;
mod ptx_schedules;
mod ptx_text;
mod ptx_transposes;
mod requirements;
mod simplify;
mod snapshots;
mod strategy;
mod verifier;
