//! A program's arguments in host memory, for the engines that run on it.

use super::{BufferSpec, ParamSpec, Program};
use tilewire::tensor::bytes_of;
use tilewire::{Arg, Tensor};

/// Host memory for one launch of a program.
pub struct Hosted {
    /// The arguments, in the order of the parameters.
    pub args: Vec<Arg>,
    /// Every allocation, with the range of bytes that a bank covers. All other bytes must not change.
    whole: Vec<(Tensor<u8>, std::ops::Range<usize>)>,
}

/// The value of the bytes around a bank.
const GUARD: u8 = 0xcc;

impl Hosted {
    pub fn new(program: &Program) -> Self {
        let mut hosted = Hosted { args: Vec::new(), whole: Vec::new() };
        for spec in &program.params {
            let arg = match spec {
                ParamSpec::Scalar { ty, bits } => {
                    Arg::Scalar(Tensor::from_slice(&bits.to_le_bytes()[..ty.size()]).memory().clone())
                }
                ParamSpec::Slots { len, stride } => {
                    Arg::Slots(vec![Tensor::<u8>::zeros((len * u64::from(*stride)) as usize).memory().clone()])
                }
                ParamSpec::Buffer(BufferSpec { alias: Some(other), .. }) => hosted.args[*other].clone(),
                ParamSpec::Buffer(spec) => {
                    let place = |bank: &Vec<u8>| hosted.place(spec.offset as usize, bank);
                    Arg::Buffer(spec.banks.iter().map(place).collect())
                }
            };
            hosted.args.push(arg);
        }
        hosted
    }

    /// The bytes of every parameter after a run, made comparable as [`Program::comparable`] says.
    ///
    /// # Panics
    /// When a byte outside of every bank has changed.
    pub fn results(&self, program: &Program) -> Vec<Vec<Vec<u8>>> {
        for (tensor, bank) in &self.whole {
            let outside = tensor.cells().iter().enumerate().filter(|(i, _)| !bank.contains(i));
            for (i, cell) in outside {
                assert_eq!(cell.get(), GUARD, "byte {i} beside the bank {bank:?} was written\n{program:?}");
            }
        }
        let bytes = self.args.iter().map(|arg| match arg {
            Arg::Buffer(banks) | Arg::Slots(banks) => banks.iter().map(|bank| bytes_of(bank).unwrap()).collect(),
            _ => Vec::new(),
        });
        program.comparable(bytes.collect())
    }

    fn place(&mut self, offset: usize, bank: &[u8]) -> tilewire::Memory {
        let mut bytes = vec![GUARD; offset];
        bytes.extend_from_slice(bank);
        bytes.extend_from_slice(&[GUARD; 64]);
        let tensor = Tensor::from_slice(&bytes);
        let memory = tensor.memory().part(offset, bank.len());
        self.whole.push((tensor, offset..offset + bank.len()));
        memory
    }
}
