//! A socket between the ranks: what the kernel does with these bytes.

use super::Kind;
use super::pairs::Entrant;
use super::rival::Rival;
use crate::bench::ranks::links::Links;
use crate::bench::ranks::side::{Limit, Run, Side};
use anyhow::{Context, Result, bail, ensure};
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::{Duration, Instant};
use tilewire::link::{ShmTransport, Transport};
use tilewire::{Tensor, all_gather};

/// How long the other rank may take to connect, or to answer.
const PATIENCE: Duration = Duration::from_secs(30);
/// Polls of a socket between two looks at the clock.
const POLLS: u32 = 1 << 12;

/// A stream, or messages there and back, over TCP on the loopback interface. Collective.
pub fn sides<'l>(links: &'l Links, kind: Kind, bytes: usize) -> Result<Vec<(Entrant, Side<'l>)>> {
    let socket = connected(&links.shm)?;
    socket.set_nodelay(true)?;
    // A stream sleeps in the kernel, as raw streams do. Small messages are polled, which is faster.
    socket.set_nonblocking(kind == Kind::PingPong)?;
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.set_write_timeout(Some(PATIENCE))?;
    let raw = Raw { socket, rank: links.shm.rank().index(), kind, out: vec![0; bytes], inp: vec![0; bytes], number: 0 };
    Ok(vec![(Entrant::Rival(Rival::Socket), Side::limit(Rival::Socket.name(), Limit::Plain, raw))])
}

fn connected(link: &ShmTransport) -> Result<TcpStream> {
    let listener = (link.rank().index() == 0).then(|| TcpListener::bind((Ipv4Addr::LOCALHOST, 0))).transpose()?;
    let port = listener.as_ref().map_or(Ok(0), |listener| listener.local_addr().map(|address| address.port()))?;
    let (own, both) = (Tensor::from_slice(&[u64::from(port)]), Tensor::<u64>::zeros(2));
    all_gather(link, &both, &own).run()?;
    let Some(listener) = listener else {
        return Ok(TcpStream::connect((Ipv4Addr::LOCALHOST, u16::try_from(both.get(0))?))?);
    };
    listener.set_nonblocking(true)?;
    let since = Instant::now();
    loop {
        match listener.accept() {
            Ok((socket, _)) => return Ok(socket),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                ensure!(since.elapsed() < PATIENCE, "rank 1 did not connect to a socket for {PATIENCE:?}");
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(error) => return Err(error).context("a socket for rank 1"),
        }
    }
}

struct Raw {
    socket: TcpStream,
    rank: usize,
    kind: Kind,
    out: Vec<u8>,
    inp: Vec<u8>,
    number: u64,
}

impl Raw {
    fn send(&mut self) -> Result<()> {
        stamp(&mut self.out, self.number);
        match self.kind {
            Kind::PingPong => polled(self.out.len(), |at| self.socket.write(&self.out[at..])),
            _ => Ok(self.socket.write_all(&self.out)?),
        }
    }

    fn receive(&mut self) -> Result<()> {
        match self.kind {
            Kind::PingPong => polled(self.inp.len(), |at| self.socket.read(&mut self.inp[at..]))?,
            _ => self.socket.read_exact(&mut self.inp)?,
        }
        let number = self.number.to_le_bytes();
        let is_right = [&self.inp[..8], &self.inp[self.inp.len() - 8..]].iter().all(|word| *word == number);
        ensure!(is_right, "message {} is wrong", self.number);
        Ok(())
    }
}

/// Moves all bytes through calls that move some, or none.
fn polled(bytes: usize, mut some: impl FnMut(usize) -> std::io::Result<usize>) -> Result<()> {
    let (mut at, mut polls, mut since) = (0, 0u32, None);
    while at < bytes {
        match some(at) {
            Ok(0) => bail!("the other rank has closed its socket"),
            Ok(moved) => at += moved,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                polls = polls.wrapping_add(1);
                if polls.is_multiple_of(POLLS) {
                    let waited = since.get_or_insert_with(Instant::now).elapsed();
                    ensure!(waited < PATIENCE, "the other rank did not answer for {PATIENCE:?}");
                }
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// The first and the last word of a message are its number.
fn stamp(message: &mut [u8], number: u64) {
    let last = message.len() - 8;
    message[..8].copy_from_slice(&number.to_le_bytes());
    message[last..].copy_from_slice(&number.to_le_bytes());
}

fn byte(rank: usize, k: usize) -> u8 {
    (k % 251) as u8 ^ (rank as u8 + 1)
}

impl Run for Raw {
    fn run(&mut self, steps: u64) -> Result<()> {
        for _ in 0..steps {
            self.number += 1;
            match (self.kind, self.rank) {
                (Kind::PingPong, 0) => {
                    self.send()?;
                    self.receive()?;
                }
                (Kind::PingPong, _) => {
                    self.receive()?;
                    self.send()?;
                }
                (_, 0) => self.send()?,
                _ => self.receive()?,
            }
        }
        Ok(())
    }

    fn fill(&mut self) {
        let rank = self.rank;
        self.out.iter_mut().enumerate().for_each(|(k, to)| *to = byte(rank, k));
        self.inp.fill(0xff);
    }

    fn verify(&mut self) -> Result<()> {
        if self.kind != Kind::PingPong && self.rank == 0 {
            return Ok(());
        }
        let mut must: Vec<u8> = (0..self.inp.len()).map(|k| byte(1 - self.rank, k)).collect();
        stamp(&mut must, self.number);
        ensure!(self.inp == must, "the received bytes are wrong");
        Ok(())
    }
}
