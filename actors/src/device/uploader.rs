//! A core's streamed clusters on their way through a device: copied into a place of its window, computed there in a job
//! with others, and back.
//!
//! ```text
//!   Preload ─▶ offer ─ Upload ─▶ place ─ job ─▶ done: its share is added, the buffer goes back to the stream window
//!                 └─ no room ─▶ GC                └─ any fault ─▶ GC
//! ```
//!
//! Clusters of the next FFN that have been read are copied before it begins, while the device has nothing else to do.
//! The core keeps a cluster's buffer until its job is over, so whatever fails, it computes the very same cluster
//! itself. Weights travel in memory that is made at start-up, since a device that hangs may never give back what it was
//! lent.

use std::collections::VecDeque;
use std::sync::Arc;

use forebay_devices::{SegmentId, Work};
use forebay_models::bundle::DirectoryEntry;
use forebay_plans::program::Item;
use forebay_plans::uploads::{UploadWindow, Uploads};
use forebay_queues::capacity::Capacity;
use forebay_stages::contract::{Outbox, Port};
use forebay_stages::flight::Flight;
use forebay_stages::frame::Frame;
use forebay_stages::udc::Udc;

use super::errand::{Errand, Upload};
use super::fill::fill_share;
use super::job_number::Sender;
use super::parts::{Window, cluster};
use super::room::{CARRIERS, JobRoom};
use super::trip::{Lanes, Trip};

/// A cluster in a place of the window.
#[derive(Debug)]
struct Placed {
    place: usize,
    flight: Box<Flight>,
}

/// A core's end of the lanes by which streamed clusters go to a device.
#[derive(Debug)]
pub struct Uploader {
    rank: usize,
    trip: Trip,
    window: Arc<Window>,
    /// The core's clusters that are copied, ascending, with the least number of tokens for which they are.
    wanted: Vec<(u32, usize)>,
    /// Free places of the core.
    free: Vec<usize>,
    /// Memory for clusters on their way, while the device actor does not have it.
    carriers: Vec<Vec<u8>>,
    /// Clusters of the next FFN with the places to which they have been copied. All of a phase's clusters are offered
    /// in it, so none is left when a step ends.
    ahead: Vec<(u32, usize)>,
    /// Clusters that are on the device, or will be before the next job begins.
    copied: VecDeque<Placed>,
    /// Those of the current job, and the same as the job has them.
    given: Vec<Placed>,
    items: Vec<Item>,
}

impl Uploader {
    /// What a core may have under way.
    pub(super) fn errands() -> Capacity {
        Capacity::of(&[
            ("streamed clusters", CARRIERS),
            ("jobs of streamed clusters", 1),
        ])
    }

    /// For core `rank`, whose clusters `owner` tells.
    pub(super) fn new(
        rank: usize,
        lanes: Lanes,
        window: Arc<Window>,
        (uploads, owner): (&Uploads, &[u16]),
        room: JobRoom,
    ) -> Self {
        let places = window.sizes.places;
        let own = |cluster: u32| usize::from(owner[cluster as usize]) == rank;
        let carrier = || Vec::with_capacity(window.sizes.place_bytes);
        Self {
            rank,
            trip: Trip::new(
                Sender::Clusters(rank),
                lanes,
                room.of_places(places).empty_share(),
            ),
            wanted: uploads.clusters().filter(|c| own(c.0)).collect(),
            free: (0..places).collect(),
            carriers: (0..CARRIERS).map(|_| carrier()).collect(),
            ahead: Vec::with_capacity(places),
            copied: VecDeque::with_capacity(places),
            given: Vec::with_capacity(places),
            items: Vec::with_capacity(places),
            window,
        }
    }

    /// Whether another cluster could be copied now.
    pub(crate) fn has_room(&self) -> bool {
        let is_there = self.window.segment().is_some() && !self.trip.account.is_gone();
        is_there && !self.carriers.is_empty() && !self.free.is_empty()
    }

    /// Whether another cluster is better handed on now than after one has been computed: it could be copied, or has
    /// been.
    pub(crate) fn asks(&self) -> bool {
        self.has_room() || !self.ahead.is_empty()
    }

    /// Whether the device has the core's job.
    pub(crate) fn is_waiting(&self) -> bool {
        self.trip.is_waiting()
    }

    /// Clusters that are here.
    pub(crate) fn held(&self) -> usize {
        self.copied.len() + self.given.len()
    }

    /// Jobs, carriers and places that the device does not have.
    pub(crate) fn spare(&self) -> usize {
        let places = self.free.len() + self.ahead.len();
        usize::from(self.trip.has_job()) + self.carriers.len() + places
    }

    /// A cluster has been read. The device gets it, or it is given back if the core computes it: because the plan says
    /// so, or nothing is free.
    pub(crate) fn offer(
        &mut self,
        frame: &Frame<'_>,
        flight: Box<Flight>,
    ) -> Result<(), Box<Flight>> {
        let cluster = flight.item.cluster;
        let ahead = self.ahead.iter().position(|copied| copied.0 == cluster);
        let place = match (ahead, &flight.buffer) {
            (Some(i), _) => Some(self.ahead.swap_remove(i).1),
            (None, Some(buffer)) if self.wants(frame.n_tokens(), cluster) => {
                self.copy(cluster, frame.entry(cluster), buffer)
            }
            _ => None,
        };
        match place {
            Some(place) => self.copied.push_back(Placed { place, flight }),
            None => return Err(flight),
        }
        Ok(())
    }

    /// Copies a cluster of the next FFN that has been read, if that is still to be done in a step of `n_tokens`; false
    /// if not, or nothing is free.
    pub(crate) fn copy_ahead(
        &mut self,
        n_tokens: usize,
        (cluster, entry): (u32, &DirectoryEntry),
        bytes: &[u8],
    ) -> bool {
        let known = self.ahead.iter().any(|copied| copied.0 == cluster);
        if known || !self.wants(n_tokens, cluster) {
            return false;
        }
        let place = self.copy(cluster, entry, bytes);
        self.ahead.extend(place.map(|place| (cluster, place)));
        place.is_some()
    }

    /// Has the device copy a cluster to a place that is free; `None` if there is none, or the device is gone.
    fn copy(&mut self, cluster: u32, entry: &DirectoryEntry, buffer: &[u8]) -> Option<usize> {
        let segment = self.window.segment().filter(|_| self.has_room())?;
        let (place, mut bytes) = (self.free.pop()?, self.carriers.pop()?);
        bytes.clear();
        bytes.extend_from_slice(&buffer[..entry.len as usize]);
        let upload = Upload {
            rank: self.rank,
            cluster,
            layer: entry.layer().unwrap_or(0) as u16,
            segment,
            at: at((self.rank, &self.window.sizes), place),
            bytes,
        };
        match self.trip.ask(Errand::Upload(upload)) {
            Ok(()) => return Some(place),
            Err(Errand::Upload(upload)) => self.carriers.push(upload.bytes),
            Err(_) => {}
        }
        self.free.push(place);
        None
    }

    fn wants(&self, n_tokens: usize, cluster: u32) -> bool {
        let found = self
            .wanted
            .binary_search_by_key(&cluster, |wanted| wanted.0);
        found.is_ok_and(|i| n_tokens >= self.wanted[i].1)
    }

    /// Receives what the device actor has answered.
    pub(crate) fn collect(&mut self) {
        let carriers = &mut self.carriers;
        self.trip.collect(|bytes| carriers.push(bytes));
    }

    /// The device has had enough time: it is not used again.
    pub(crate) fn give_up(&mut self, seconds: u64) {
        self.trip.give_up(seconds);
    }

    /// Takes the device's results and adds them to the core's share, returns what the core has to compute itself, or
    /// begins the next job; false if there is nothing to do.
    pub(crate) fn turn(&mut self, frame: &Frame<'_>, udc: &mut Udc, out: &mut Outbox) -> bool {
        self.collect();
        match self.trip.take() {
            Some(true) => {
                if let Some(Work::Share { out: share, .. }) = self.trip.job().map(|j| &j.work) {
                    udc.add(share);
                }
                self.end_job(Port::Done, out);
                true
            }
            Some(false) => {
                self.end_job(Port::Here, out);
                true
            }
            None if self.trip.is_waiting() || self.copied.is_empty() => false,
            None if self.trip.account.is_gone() => {
                while let Some(Placed { place, flight }) = self.copied.pop_front() {
                    self.free.push(place);
                    out.send(Port::Here, flight);
                }
                true
            }
            None => self.begin_job(frame),
        }
    }

    /// The clusters of the job leave through `port`.
    fn end_job(&mut self, port: Port, out: &mut Outbox) {
        for Placed { place, flight } in self.given.drain(..) {
            self.free.push(place);
            out.send(port, flight);
        }
    }

    /// Asks for all that has been copied; false if the job is not here.
    fn begin_job(&mut self, frame: &Frame<'_>) -> bool {
        let Some(job) = self.trip.job() else {
            return false;
        };
        self.given.extend(self.copied.drain(..));
        self.items.clear();
        self.items
            .extend(self.given.iter().map(|placed| placed.flight.item));
        let places = (self.rank, &self.window.sizes);
        let at = |placed: &Placed| {
            let entry = frame.entry(placed.flight.item.cluster);
            let n = entry.count as usize;
            // The plan has chosen clusters that have all that.
            cluster(frame.bundle, entry.content, n, at(places, placed.place)).ok()
        };
        let segment = self.window.segment().unwrap_or(SegmentId::NONE);
        let at = self.given.iter().filter_map(at);
        fill_share(job, frame, (segment, at), &self.items);
        self.trip.send(frame.phase.layer);
        true
    }
}

/// Where a place of core `rank` begins in the window.
fn at((rank, sizes): (usize, &UploadWindow), place: usize) -> usize {
    (rank * sizes.places + place) * sizes.place_bytes
}
