//! The kernels of shipped transfers as PTX: every protocol and hook assembles for every target, without spills.

mod support;

use support::ptxas;
use tilewire::ir::{Kernel, simplify};
use tilewire::ptx::{Options, Target, emit};
use tilewire::transport::{ShmOptions, ShmTransport, World};
use tilewire::{Bf16, Config, F8E4M3, Primitive, Tensor, hooks, sendrecv};

/// The kernels of rank 0 of two that exchange tensors, with names.
fn kernels() -> Vec<(&'static str, Kernel)> {
    let all = World::threads(2).run(|world| {
        let link = ShmTransport::rendezvous(&world, ShmOptions::default())?;
        let peer = world.rank().after(1, 2);
        let mut kernels = Vec::new();
        let (small_in, small_out) = (Tensor::<f32>::zeros(64), Tensor::<f32>::zeros(64));
        let traced = sendrecv(&link, &small_out, &small_in, peer, peer).trace()?;
        kernels.push(("packets", traced.kernel));
        let (inp, out) = (Tensor::<f32>::zeros(1 << 18), Tensor::<f32>::zeros(1 << 18));
        let traced = sendrecv(&link, &out, &inp, peer, peer).blocks(4).trace()?;
        kernels.push(("staged", traced.kernel));
        // Slots that the smallest target's shared memory has room for in both roles, four stages each.
        let bulk = Config { primitive: Some(Primitive::Bulk), slot_bytes: Some(8 << 10), ..Config::default() };
        let traced = sendrecv(&link, &out, &inp, peer, peer).config(bulk).trace()?;
        kernels.push(("bulk", traced.kernel));
        let scaled = sendrecv(&link, &out, &inp, peer, peer).config(Config { blocks: Some(4), ..bulk });
        let traced = scaled.produce(|c| c.input.load(c.pos()) * 0.5).consume(|c, x| c.output.store(c.pos(), x + 1.0));
        kernels.push(("bulk with hooks", traced.trace()?.kernel));
        let traced = sendrecv(&link, &out, &inp, peer, peer).produce(|c| c.input.load(c.pos()) * 0.5).trace()?;
        kernels.push(("scaled", traced.kernel));
        let (inp, out) = (Tensor::<Bf16>::zeros(1 << 18), Tensor::<Bf16>::zeros(1 << 18));
        let transposed = sendrecv(&link, &out, &inp, peer, peer).chunk_shape(512, 512);
        let traced = transposed.produce(|c| c.input.at(c.col(), c.row())).trace()?;
        kernels.push(("transposed", traced.kernel));
        let (inp, out) = (Tensor::<f32>::zeros(1 << 16), Tensor::<F8E4M3>::zeros(1 << 16));
        let narrow = sendrecv(&link, &out, &inp, peer, peer).carries::<F8E4M3>();
        let traced = narrow.produce(|c| c.input.load(c.pos()).cast::<F8E4M3>()).trace()?;
        kernels.push(("narrowed", traced.kernel));
        let (inp, out) = (Tensor::<Bf16>::zeros(1 << 16), Tensor::<Bf16>::zeros(1 << 16));
        let squeezed =
            sendrecv(&link, &out, &inp, peer, peer).produce2(hooks::quantise(F8E4M3::MAX, 128)).last_per(128);
        kernels.push(("quantised", squeezed.consume(hooks::dequantise()).trace()?.kernel));
        link.close()?;
        Ok(kernels)
    });
    all.unwrap().swap_remove(0)
}

#[test]
fn shipped_transfers_assemble_for_every_target() {
    let kernels = kernels();
    let assembles = ptxas::find().is_some();
    for (name, kernel) in kernels {
        for target in Target::ALL {
            let module =
                emit(&simplify(&kernel), Options::new(target)).unwrap_or_else(|e| panic!("{name} for {target}: {e}"));
            if assembles {
                let usage =
                    ptxas::assemble(&module.text, target).unwrap_or_else(|said| panic!("{name} for {target}: {said}"));
                assert_eq!(usage.spills, 0, "{name} for {target}: {usage:?}");
            }
        }
    }
}
