//! Vector clocks, and the two kinds of knowledge that signals carry.
//!
//! A clock is a tree that clones share: every signal keeps its party's knowledge, and little changes between two
//! signals. With arrays a world of 64 ranks, which has ten thousand parties, would need gigabytes.

use std::rc::Rc;

/// A party of a run, by its index in every clock.
pub type PartyId = u32;

/// Children of a node, and epochs of a leaf.
const FAN: usize = 16;

/// For every party, how many of its epochs are known to be over. Missing entries are 0.
#[derive(Clone, Default, Debug)]
pub struct Clock {
    root: Option<Rc<Node>>,
    /// Levels above the leaves.
    height: u32,
}

#[derive(Clone, Debug)]
enum Node {
    Leaf([u32; FAN]),
    Inner([Option<Rc<Node>>; FAN]),
}

impl Clock {
    /// The known epoch of a party.
    pub fn get(&self, party: PartyId) -> u32 {
        let mut place = party as usize;
        if place >= self.room() {
            return 0;
        }
        let (mut node, mut room) = (self.root.as_ref(), self.room());
        while let Some(here) = node {
            room /= FAN;
            match &**here {
                Node::Leaf(epochs) => return epochs[place],
                Node::Inner(children) => node = children[place / room].as_ref(),
            }
            place %= room;
        }
        0
    }

    /// Sets the epoch of a party.
    pub fn set(&mut self, party: PartyId, epoch: u32) {
        while party as usize >= self.room() {
            self.raise();
        }
        set(&mut self.root, self.height, party as usize, epoch);
    }

    /// True if this epoch of this party is over for the owner of this clock.
    pub fn covers(&self, party: PartyId, epoch: u32) -> bool {
        self.get(party) >= epoch
    }

    /// Learns everything that `other` knows.
    pub fn join(&mut self, other: &Clock) {
        let Some(theirs) = &other.root else { return };
        while self.height < other.height {
            self.raise();
        }
        // A shorter tree lies under the first child of every level above it.
        let mut mine = &mut self.root;
        for _ in other.height..self.height {
            let node = Rc::make_mut(mine.get_or_insert_with(|| Rc::new(Node::empty(1))));
            let Node::Inner(children) = node else { unreachable!("a level above the leaves") };
            mine = &mut children[0];
        }
        join(mine, theirs);
    }

    /// True if it knows everything that `other` knows.
    pub fn holds(&self, other: &Clock) -> bool {
        let (mine, theirs) = level(self, other);
        theirs.root.is_none_or(|theirs| holds(mine.root.as_ref(), &theirs))
    }

    /// What both know.
    pub fn meet(&self, other: &Clock) -> Clock {
        let (mine, theirs) = level(self, other);
        let root = mine.root.as_ref().zip(theirs.root.as_ref()).map(|(mine, theirs)| meet(mine, theirs));
        Clock { root, height: mine.height }
    }

    /// Capacity in parties.
    fn room(&self) -> usize {
        FAN.pow(self.height + 1)
    }

    /// Adds a level.
    fn raise(&mut self) {
        if let Some(below) = self.root.take() {
            let mut children: [Option<Rc<Node>>; FAN] = Default::default();
            children[0] = Some(below);
            self.root = Some(Rc::new(Node::Inner(children)));
        }
        self.height += 1;
    }
}

impl Node {
    /// A node `height` levels above the leaves.
    fn empty(height: u32) -> Node {
        if height == 0 { Node::Leaf([0; FAN]) } else { Node::Inner(Default::default()) }
    }
}

fn set(node: &mut Option<Rc<Node>>, height: u32, place: usize, epoch: u32) {
    match Rc::make_mut(node.get_or_insert_with(|| Rc::new(Node::empty(height)))) {
        Node::Leaf(epochs) => epochs[place] = epoch,
        Node::Inner(children) => {
            let room = FAN.pow(height);
            set(&mut children[place / room], height - 1, place % room, epoch);
        }
    }
}

/// Both trees have the same height. Shared subtrees are skipped, and a subtree that already knows everything is kept.
fn join(mine: &mut Option<Rc<Node>>, theirs: &Rc<Node>) {
    let Some(node) = mine else {
        *mine = Some(theirs.clone());
        return;
    };
    if Rc::ptr_eq(node, theirs) {
        return;
    }
    match (&**node, &**theirs) {
        (Node::Leaf(a), Node::Leaf(b)) => {
            if a.iter().zip(b).all(|(a, b)| a >= b) {
                return;
            }
            if a.iter().zip(b).all(|(a, b)| a <= b) {
                *node = theirs.clone();
                return;
            }
        }
        (Node::Inner(a), Node::Inner(b)) => {
            let is_new = |(a, b): (&Option<Rc<Node>>, &Option<Rc<Node>>)| match (a, b) {
                (_, None) => false,
                (None, Some(_)) => true,
                (Some(a), Some(b)) => !Rc::ptr_eq(a, b),
            };
            if !a.iter().zip(b).any(is_new) {
                return;
            }
        }
        _ => unreachable!("trees of one height"),
    }
    match (Rc::make_mut(node), &**theirs) {
        (Node::Leaf(a), Node::Leaf(b)) => a.iter_mut().zip(b).for_each(|(a, b)| *a = (*a).max(*b)),
        (Node::Inner(a), Node::Inner(b)) => {
            for (a, b) in a.iter_mut().zip(b) {
                b.iter().for_each(|b| join(a, b));
            }
        }
        _ => unreachable!("trees of one height"),
    }
}

/// Two clocks as trees of one height.
fn level(a: &Clock, b: &Clock) -> (Clock, Clock) {
    let (mut a, mut b) = (a.clone(), b.clone());
    while a.height < b.height {
        a.raise();
    }
    while b.height < a.height {
        b.raise();
    }
    (a, b)
}

fn holds(mine: Option<&Rc<Node>>, theirs: &Rc<Node>) -> bool {
    if mine.is_some_and(|mine| Rc::ptr_eq(mine, theirs)) {
        return true;
    }
    match (mine.map(|mine| &**mine), &**theirs) {
        (Some(Node::Leaf(a)), Node::Leaf(b)) => a.iter().zip(b).all(|(a, b)| a >= b),
        (None, Node::Leaf(b)) => b.iter().all(|&b| b == 0),
        (Some(Node::Inner(a)), Node::Inner(b)) => a.iter().zip(b).all(|(a, b)| b.iter().all(|b| holds(a.as_ref(), b))),
        (None, Node::Inner(b)) => b.iter().flatten().all(|b| holds(None, b)),
        _ => unreachable!("trees of one height"),
    }
}

fn meet(a: &Rc<Node>, b: &Rc<Node>) -> Rc<Node> {
    if Rc::ptr_eq(a, b) {
        return a.clone();
    }
    Rc::new(match (&**a, &**b) {
        (Node::Leaf(a), Node::Leaf(b)) => Node::Leaf(std::array::from_fn(|i| a[i].min(b[i]))),
        (Node::Inner(a), Node::Inner(b)) => {
            Node::Inner(std::array::from_fn(|i| a[i].as_ref().zip(b[i].as_ref()).map(|(a, b)| meet(a, b))))
        }
        _ => unreachable!("trees of one height"),
    })
}

/// A party's knowledge of the others. A credit carries only `over`, so the two differ:
///
/// - `visible`: accesses whose effects it sees. A later access may touch what they wrote.
/// - `over`: accesses that have ended. A later write may overwrite what they read. Includes `visible`.
#[derive(Clone, Default, Debug)]
pub struct Knowledge {
    /// Accesses whose effects are seen.
    pub visible: Clock,
    /// Accesses that are over, seen or not.
    pub over: Clock,
}

/// Knowledge as kept by a signal.
pub type Published = Rc<Knowledge>;

impl Knowledge {
    /// Learns everything that `other` knows.
    pub fn join(&mut self, other: &Knowledge) {
        self.visible.join(&other.visible);
        self.over.join(&other.over);
    }

    /// The part of it that a credit carries.
    pub fn credit(&self) -> Knowledge {
        Knowledge { visible: Clock::default(), over: self.over.clone() }
    }

    /// Begins an epoch of the party itself.
    pub fn set_own(&mut self, party: PartyId, epoch: u32) {
        self.visible.set(party, epoch);
        self.over.set(party, epoch);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_join_knows_what_either_knew() {
        let (mut a, mut b) = (Clock::default(), Clock::default());
        a.set(0, 3);
        b.set(4, 2);
        a.join(&b);
        assert!(a.covers(0, 3) && a.covers(4, 2) && a.covers(9, 0) && !a.covers(4, 3));
    }

    #[test]
    fn a_tree_says_what_an_array_says() {
        let mut random = crate::check::random::Random::new(3);
        let mut clocks: Vec<(Clock, Vec<u32>)> = vec![(Clock::default(), vec![0; 5000]); 6];
        for _ in 0..4000 {
            let (a, b) = (random.below(6), random.below(6));
            match random.below(4) {
                0 => clocks[a] = clocks[b].clone(),
                1 => {
                    let (clock, array) = clocks[b].clone();
                    clocks[a].0.join(&clock);
                    clocks[a].1.iter_mut().zip(&array).for_each(|(mine, theirs)| *mine = (*mine).max(*theirs));
                }
                _ => {
                    let most = [16, 300, 5000][random.below(3)];
                    let party = random.below(most);
                    let epoch = clocks[a].1[party] + 1;
                    clocks[a].0.set(party as u32, epoch);
                    clocks[a].1[party] = epoch;
                }
            }
        }
        for (clock, array) in &clocks {
            for (other, theirs) in &clocks {
                let all = || array.iter().zip(theirs);
                assert_eq!(clock.holds(other), all().all(|(mine, theirs)| mine >= theirs));
                let both = clock.meet(other);
                assert!(all().enumerate().all(|(party, (mine, theirs))| both.get(party as u32) == *mine.min(theirs)));
                assert!(clock.holds(&both) && other.holds(&both));
            }
            assert!(array.iter().enumerate().all(|(party, &epoch)| clock.get(party as u32) == epoch));
            assert_eq!(clock.get(u32::MAX), 0);
        }
    }

    #[test]
    fn a_credit_shows_nothing() {
        let mut all = Knowledge::default();
        all.set_own(1, 5);
        let credit = all.credit();
        assert!(credit.over.covers(1, 5) && !credit.visible.covers(1, 1));
    }
}
