//! Links by posts whose memory is smaller than they say. Each is refused when a transfer is built, with the values and
//! the remedy.

use std::time::Duration;
use tilewire::ir::Type;
use tilewire::link::{MeshOptions, MeshTransport, ShmOptions, Transport, Window, check_transfer};
use tilewire::transport::layout::LINE;
use tilewire::transport::{
    Door, LinkKind, LinkShape, Pairing, PeerEndpoint, PostedPeer, Protocol, Rank, There, Ticket, Transfer,
    TransferError, TransportError, World,
};
use tilewire::{Primitive, RunError, Tensor, sendrecv};

/// A transport of another crate: like a mesh, with endpoints and shapes that are slightly wrong.
struct Own<'l> {
    inner: &'l MeshTransport,
    change: &'l dyn Fn(&mut PeerEndpoint, &mut LinkShape),
}

impl Own<'_> {
    fn of(&self, peer: Rank) -> (PeerEndpoint, LinkShape) {
        let mut both = (self.inner.endpoint(peer).unwrap(), self.inner.link(peer));
        if both.1.kind == LinkKind::Fabric {
            (self.change)(&mut both.0, &mut both.1);
        }
        both
    }
}

impl Transport for Own<'_> {
    fn rank(&self) -> Rank {
        self.inner.rank()
    }

    fn world_size(&self) -> usize {
        self.inner.world_size()
    }

    fn link(&self, peer: Rank) -> LinkShape {
        self.of(peer).1
    }

    fn endpoint(&self, peer: Rank) -> Option<PeerEndpoint> {
        Some(self.of(peer).0)
    }

    fn door(&self) -> Option<&Door> {
        self.inner.door()
    }

    fn ticket(&self, pairing: Pairing, peer: Rank) -> Ticket {
        self.inner.ticket(pairing, peer)
    }

    fn tell(&self, ticket: &Ticket, card: &[u8]) -> Result<(), TransportError> {
        self.inner.tell(ticket, card)
    }

    fn hear(&self, ticket: &Ticket, deadline: Option<Duration>) -> Result<Vec<u8>, TransportError> {
        self.inner.hear(ticket, deadline)
    }

    fn is_dense(&self) -> bool {
        self.inner.is_dense()
    }
}

fn posted(endpoint: &mut PeerEndpoint) -> &mut PostedPeer {
    match &mut endpoint.there {
        There::Posted(posted) => posted,
        _ => panic!("ranks are alone"),
    }
}

/// The error of a transfer over links that are changed in this way. It is the same when the transfer is checked and
/// when it is built.
#[track_caller]
fn refused(change: impl Fn(&mut PeerEndpoint, &mut LinkShape) + Sync) -> TransferError {
    refused_by(Protocol::Staged { slot_bytes: 256, depth: 4 }, change)
}

/// The same with a given protocol.
#[track_caller]
fn refused_by(protocol: Protocol, change: impl Fn(&mut PeerEndpoint, &mut LinkShape) + Sync) -> TransferError {
    let errors = World::threads(2).run(|world| {
        let sizes = ShmOptions {
            per_peer_bytes: Some(8192),
            max_blocks_per_peer: Some(2),
            max_slots: Some(8),
            ..ShmOptions::default()
        };
        let mesh = MeshTransport::rendezvous(&world, MeshOptions { sizes, ..MeshOptions::alone(2) })?;
        let (own, peer) = (Own { inner: &mesh, change: &change }, world.next());
        let (inp, window) = (Tensor::<f32>::zeros(64), Window::<f32>::allocate(&mesh, 64)?);
        let transfer = Transfer { peer, bytes: 256, dtype: Type::F32, blocks: 1, protocol };
        check_transfer(&mesh, &transfer, &[inp.memory()])?;
        let checked = check_transfer(&own, &transfer, &[inp.memory()]).expect_err("it does not fit");
        let built = match protocol {
            Protocol::Direct { .. } => {
                sendrecv(&own, window.tensor(), &inp, peer, peer).window(&window).primitive(Primitive::Direct).build()
            }
            _ => sendrecv(&own, window.tensor(), &inp, peer, peer).build(),
        };
        match built.map(|_| ()) {
            Err(RunError::Transfer(built)) => assert_eq!(built, checked),
            built => panic!("{built:?}"),
        }
        // The peer was told nothing, so a transfer that fits still works.
        let out = Tensor::<f32>::zeros(64);
        sendrecv(&mesh, &out, &inp, peer, peer).run()?;
        drop(window);
        mesh.close()?;
        Ok(checked)
    });
    let [first, second] = <[_; 2]>::try_from(errors.unwrap()).unwrap();
    // The errors differ only in the peer.
    assert_eq!(first.to_string().replace("rank 1", "rank 0"), second.to_string());
    first
}

const PEER: Rank = Rank::new(1);

#[test]
fn an_outbox_shorter_than_the_staging_is_refused() {
    let error = refused(|endpoint, _| {
        let outbox = &mut posted(endpoint).outbox;
        *outbox = outbox.part(0, 8191);
    });
    assert_eq!(error, TransferError::PostedRoom { what: "the outbox", peer: PEER, bytes: 8191, needed: 8192 });
    let text = error.to_string();
    assert!(text.contains("the outbox for rank 1 has 8191 bytes") && text.contains("need 8192: make it"), "{text}");
}

#[test]
fn staging_shorter_than_the_link_says_is_refused() {
    let error = refused(|_, shape| shape.staging_bytes = 8193);
    assert_eq!(error, TransferError::PostedRoom { what: "the outbox", peer: PEER, bytes: 8192, needed: 8193 });
    let error = refused(|endpoint, _| endpoint.here.staging = endpoint.here.staging.part(0, 4096));
    assert_eq!(error, TransferError::PostedRoom { what: "the staging", peer: PEER, bytes: 4096, needed: 8192 });
}

#[test]
fn areas_of_slots_shorter_than_the_link_says_are_refused() {
    let error = refused(|_, shape| shape.max_slots = 9);
    let (what, bytes, needed) = ("the area of TAILs", 2 * 8 * LINE, 2 * 9 * LINE);
    assert_eq!(error, TransferError::PostedRoom { what, peer: PEER, bytes, needed });
    let error = refused(|endpoint, _| {
        let heads = &mut endpoint.here.signals.head;
        *heads = heads.part(0, LINE);
    });
    let what = "the area of HEADs";
    assert_eq!(error, TransferError::PostedRoom { what, peer: PEER, bytes: LINE, needed: bytes });
}

/// The memory that kernels poll after they have posted an input in place.
#[test]
fn an_area_of_sents_shorter_than_the_link_says_is_refused_into_windows_alone() {
    let shorter = |endpoint: &mut PeerEndpoint, _: &mut LinkShape| {
        let sent = &mut posted(endpoint).sent;
        *sent = sent.part(0, LINE);
    };
    let error = refused_by(Protocol::Direct { window_bytes: 256 }, shorter);
    let (what, needed) = ("the area of SENTs", 2 * LINE);
    assert_eq!(error, TransferError::PostedRoom { what, peer: PEER, bytes: LINE, needed });
    assert!(error.to_string().contains("the area of SENTs for rank 1 has"), "{error}");
    // A transfer through slots does not poll it. So `check_transfer` has no objection to a link that is otherwise
    // right.
    let fits = World::threads(2).run(|world| {
        let mesh = MeshTransport::rendezvous(&world, MeshOptions::alone(2))?;
        let own = Own { inner: &mesh, change: &shorter };
        let protocol = Protocol::Staged { slot_bytes: 256, depth: 4 };
        let transfer = Transfer { peer: world.next(), bytes: 256, dtype: Type::F32, blocks: 1, protocol };
        let fits = check_transfer(&own, &transfer, &[]).is_ok();
        mesh.close()?;
        Ok(fits)
    });
    assert_eq!(fits.unwrap(), [true; 2]);
}

#[test]
fn direct_over_a_transport_that_posts_into_no_windows_is_refused() {
    let protocol = Protocol::Direct { window_bytes: 256 };
    let error = refused_by(protocol, |_, _| {});
    let TransferError::Unable { protocol: refused, why } = error else { panic!("{error}") };
    assert_eq!(refused, protocol);
    assert!(why.contains("posts into no windows: use staged"), "{why}");
}

#[test]
fn lines_that_a_notice_cannot_name_are_refused() {
    const MOST: u64 = (1 << 20) - 1;
    // Two blocks of eight slots: the last number that fits, and one line more.
    let lines = |first| move |endpoint: &mut PeerEndpoint, _: &mut LinkShape| posted(endpoint).lines.tail = first;
    let error = refused(lines(MOST - 15));
    assert_eq!(error, TransferError::ControlLines { peer: PEER, lines: MOST + 1, max: MOST as usize });
    assert!(error.to_string().contains("fewer max_blocks_per_peer or max_slots"), "{error}");
    for change in [
        |posted: &mut PostedPeer| posted.lines.head = u64::MAX,
        |posted: &mut PostedPeer| posted.lines.ready = MOST - 1,
        |posted: &mut PostedPeer| posted.lines.done = MOST,
    ] {
        let error = refused(|endpoint, _| change(posted(endpoint)));
        assert!(matches!(error, TransferError::ControlLines { lines, .. } if lines > MOST), "{error}");
    }
}

#[test]
fn a_mesh_with_too_many_lines_is_refused_at_the_rendezvous() {
    let mesh = |max_slots| {
        World::threads(2).run(|world| {
            let sizes =
                ShmOptions { max_blocks_per_peer: Some(8), max_slots: Some(max_slots), ..ShmOptions::default() };
            Ok(MeshTransport::rendezvous(&world, MeshOptions { sizes, ..MeshOptions::alone(2) }).err())
        })
    };
    for error in mesh(40_000).unwrap() {
        let error = error.expect("two areas of 2 × 8 × 40,000 lines are more than 2²⁰");
        let text = error.to_string();
        assert!(matches!(error, TransportError::BadOption { option: "max_slots", value: 40_000, .. }), "{text}");
        assert!(text.contains("a rank has at most 1048575 control lines; it has 1280"), "{text}");
    }
    assert!(mesh(100).unwrap().iter().all(Option::is_none));
}
