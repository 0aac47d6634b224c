//! Launch after launch on one transport. Nothing is reset, and no launch leaves anything for the next.

use crate::case::{SMALL, Shift, Way, assert_same, data, everything, joined, pause, poison, seed, threads};
use tilewire::collective::PreparedExchange;
use tilewire::link::{ShmOptions, Transport, Window};
use tilewire::transport::{Rank, RankError, World};
use tilewire::{Tensor, recv, send, sendrecv};
use tilewire_testkit::random::Random;

/// A shift that is built once and launched with new data each time.
struct Repeated<'l> {
    shift: Shift,
    from: Rank,
    inp: Tensor<u32>,
    out: Tensor<u32>,
    exchange: PreparedExchange<'l>,
}

impl<'l> Repeated<'l> {
    fn build(shift: Shift, world: &World, link: &'l dyn Transport) -> Result<Self, RankError> {
        let (to, from) = shift.peers(world);
        let (inp, config) = (Tensor::zeros(shift.len), shift.way.config(shift.blocks));
        if shift.way == Way::Direct {
            let window = Window::<u32>::allocate(link, shift.len)?;
            let out = window.tensor().clone();
            let exchange = sendrecv(link, &out, &inp, to, from).window(&window).config(config).build()?;
            return Ok(Repeated { shift, from, inp, out, exchange });
        }
        let out = Tensor::zeros(shift.len);
        let exchange = sendrecv(link, &out, &inp, to, from).config(config).build()?;
        Ok(Repeated { shift, from, inp, out, exchange })
    }

    fn run(&mut self, me: Rank, seed: u64) -> Result<(), RankError> {
        self.inp.copy_from(&data::<u32>(seed, me, self.shift.len));
        poison(&self.out);
        self.exchange.run()?;
        assert_same(&self.out.to_vec(), &data::<u32>(seed, self.from, self.shift.len), (me, self.shift, seed));
        Ok(())
    }
}

fn a_thousand_launches(ranks: usize, shift: Shift) {
    threads(ranks, shift, |world| {
        let link = joined(world, SMALL)?;
        let mut repeated = Repeated::build(shift, world, &link)?;
        for launch in 0..1000 {
            repeated.run(world.rank(), seed() + launch)?;
        }
        drop(repeated);
        Ok(link.close()?)
    });
}

#[test]
pub fn a_thousand_launches_in_packets_need_no_reset() {
    a_thousand_launches(2, Shift { len: 150, by: 1, blocks: 2, way: Way::Packet });
    a_thousand_launches(3, Shift { len: 2, by: 2, blocks: 1, way: Way::Packet });
}

#[test]
pub fn a_thousand_launches_through_staging_need_no_reset() {
    a_thousand_launches(2, Shift { len: 150, by: 1, blocks: 2, way: Way::staged(128, 2) });
    // A depth that the steps of a launch do not divide.
    a_thousand_launches(3, Shift { len: 100, by: 1, blocks: 1, way: Way::staged(128, 3) });
}

#[test]
pub fn a_thousand_launches_into_windows_need_no_reset() {
    a_thousand_launches(2, Shift { len: 150, by: 1, blocks: 2, way: Way::Direct });
}

#[test]
pub fn sizes_slots_depths_protocols_and_blocks_alternate_on_one_transport() {
    let ways = [
        Way::Packet,
        Way::staged(128, 2),
        Way::bulk(512, 8),
        Way::staged(512, 8),
        Way::bulk(64, 5),
        Way::staged(2048, 2),
        Way::Direct,
    ];
    let launches = if everything() { 20_000 } else { 400 };
    threads(3, "alternating", |world| {
        let link = joined(world, SMALL)?;
        let mut numbers = Random::new(seed());
        let build = |number: usize| {
            let (way, len) = (ways[number % ways.len()], [1, 90, 60, 17][number % 4] * (1 + number % 2));
            Repeated::build(Shift { len, by: 1 + number % 2, blocks: 1 + number % 5, way }, world, &link)
        };
        let mut all = (0..24).map(build).collect::<Result<Vec<_>, _>>()?;
        for _ in 0..launches {
            let which = numbers.below(all.len());
            all[which].run(world.rank(), numbers.next())?;
        }
        drop(all);
        Ok(link.close()?)
    });
}

#[test]
pub fn a_deep_pipeline_drains_before_its_slots_become_others() {
    // Many slots are under way when the next launch divides the same bytes differently. The receiver is late.
    threads(2, "drain", |world| {
        let link = joined(world, SMALL)?;
        let (me, peer) = (world.rank(), world.rank().after(1, 2));
        let ways = [Way::staged(512, 8), Way::staged(128, 2), Way::staged(256, 8), Way::staged(2048, 2)];
        let mut numbers = Random::new(seed() + u64::from(me.number()));
        for launch in 0..60 {
            let (way, seed) = (ways[launch % ways.len()], seed() + launch as u64);
            let x = Tensor::from_slice(&data::<u64>(seed, Rank::new(0), 256));
            if me.index() == 0 {
                send(&link, &x, peer).config(way.config(1)).run()?;
            } else {
                poison(&x);
                let mut take = recv(&link, &x, peer).config(way.config(1)).build()?;
                pause(&mut numbers);
                take.run()?;
                assert_same(&x.to_vec(), &data::<u64>(seed, Rank::new(0), 256), (launch, way));
            }
        }
        Ok(link.close()?)
    });
}

#[test]
pub fn any_pair_exchanges_while_the_others_do_something_else() {
    let ranks = 5;
    let transfers = if everything() { 3000 } else { 150 };
    threads(ranks, "pairs", |world| {
        let link = joined(world, SMALL)?;
        let (me, mut script) = (world.rank(), Random::new(seed()));
        for _ in 0..transfers {
            let sender = Rank::new(script.below(ranks) as u32);
            let receiver = sender.after(1 + script.below(ranks - 1), ranks);
            let way = script.pick(&[Way::Packet, Way::staged(128, 2), Way::staged(256, 5), Way::bulk(256, 5)]);
            let (len, blocks, seed) = (script.below(200), 1 + script.below(3), script.next());
            let x = Tensor::from_slice(&data::<i16>(seed, sender, len));
            if me == sender {
                send(&link, &x, receiver).config(way.config(blocks)).run()?;
            } else if me == receiver {
                poison(&x);
                recv(&link, &x, sender).config(way.config(blocks)).run()?;
                assert_same(&x.to_vec(), &data::<i16>(seed, sender, len), (sender, receiver, way));
            }
        }
        Ok(link.close()?)
    });
}

#[test]
pub fn two_transports_are_used_in_turns() {
    threads(3, "two transports", |world| {
        let links = [joined(world, SMALL)?, joined(world, ShmOptions { max_slots: Some(3), ..SMALL })?];
        let (mut numbers, mut all) = (Random::new(seed()), Vec::new());
        for (number, way) in [Way::Packet, Way::staged(128, 2), Way::Direct].into_iter().enumerate() {
            for link in &links {
                all.push(Repeated::build(Shift { len: 60, by: 1 + number % 2, blocks: 2, way }, world, link)?);
            }
        }
        for _ in 0..200 {
            let which = numbers.below(all.len());
            all[which].run(world.rank(), numbers.next())?;
        }
        drop(all);
        let [a, b] = links;
        a.close()?;
        Ok(b.close()?)
    });
}

#[test]
pub fn ranks_that_come_at_any_time_get_the_same() {
    for way in
        [Way::Packet, Way::staged(128, 2), Way::staged(256, 8), Way::bulk(128, 2), Way::bulk(256, 8), Way::Direct]
    {
        threads(4, way, |world| {
            let link = joined(world, SMALL)?;
            let mut late = Random::new(seed() + u64::from(world.rank().number()));
            let mut repeated = Repeated::build(Shift { len: 120, by: 1, blocks: 2, way }, world, &link)?;
            for launch in 0..60 {
                pause(&mut late);
                repeated.run(world.rank(), seed() + launch)?;
            }
            drop(repeated);
            Ok(link.close()?)
        });
    }
}

#[test]
pub fn a_fast_sender_never_overwrites_a_window_that_is_still_read() {
    threads(2, "ready", |world| {
        let link = joined(world, SMALL)?;
        let (me, peer) = (world.rank(), world.rank().after(1, 2));
        let window = Window::<u32>::allocate(&link, 100)?;
        let mut numbers = Random::new(seed());
        if me.index() == 0 {
            let x = Tensor::<u32>::zeros(100);
            let mut give = send(&link, &x, peer).window(&window).blocks(3).build()?;
            for launch in 0..100 {
                x.copy_from(&data(launch, me, 100));
                give.run()?;
            }
        } else {
            let mut take = recv(&link, window.tensor(), peer).window(&window).blocks(3).build()?;
            for launch in 0..100 {
                take.run()?;
                pause(&mut numbers);
                assert_same(&window.tensor().to_vec(), &data(launch, peer, 100), launch);
            }
        }
        Ok(link.close()?)
    });
}
