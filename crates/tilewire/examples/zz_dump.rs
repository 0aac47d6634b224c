use tilewire::ir::simplify;
use tilewire::ptx::{Options, Target, emit};
use tilewire::rehearsal::Rehearsal;
use tilewire::transport::layout::Geometry;
use tilewire::{Algorithm, Config, Tensor, all_reduce};
fn main() {
    let geometry = Geometry { world_size: 4, per_peer_bytes: 32 << 20, max_blocks_per_peer: 32, max_slots: 8, max_copies: 1, packet_bytes: 32 << 20 };
    let link = Rehearsal::new(geometry).ranks().swap_remove(1);
    let (x, y) = (Tensor::<f32>::zeros(16384), Tensor::<f32>::zeros(16384));
    let config = Config { blocks: Some(16), warps: Some(8), ..Config::default() };
    let traced = all_reduce(&link, &y, &x).algorithm(Algorithm::OneShot).config(config).trace().unwrap();
    let k = simplify(&traced.kernel);
    eprintln!("{k}");
    println!("{}", emit(&k, Options::new(Target::Sm90a)).unwrap().text);
}
