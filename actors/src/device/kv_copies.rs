//! The copies of keys and values in a device's memory: one for each core and layer in which the device attends.

use forebay_devices::{DeviceDriver, DeviceFault, KvSpace, SegmentId};
use forebay_models::network::Network;
use forebay_stages::attention::{DeviceHeads, KvRoom};

use super::balance::Balance;
use super::segment_cell::SegmentCell;

/// The copies of all cores. All of them are there, or none.
#[derive(Debug)]
pub struct KvCopies {
    /// By core, of each by layer; `None` where only the core attends.
    cells: Vec<Option<Cell>>,
    layers: usize,
    /// With which each core begins.
    pub(super) balance: Balance,
}

#[derive(Debug)]
struct Cell {
    segment: SegmentCell,
    bytes: u64,
}

impl KvCopies {
    /// Has a device keep room for the keys and values of all `threads` cores.
    ///
    /// # Errors
    /// There is none; then nothing is kept.
    pub fn reserve(
        driver: &mut dyn DeviceDriver,
        (network, room, threads): (&Network, &KvRoom, usize),
        balance: Balance,
    ) -> Result<Self, DeviceFault> {
        let (mut cells, mut failed) = (Vec::new(), None);
        for space in spaces(network, room, threads) {
            let cell = |space: KvSpace| {
                let bytes = space.bytes();
                let reserved = driver.reserve(bytes);
                let segment = SegmentCell::new(Some(reserved?));
                Ok(Cell { segment, bytes })
            };
            match space.map(cell).transpose() {
                Ok(cell) => cells.push(cell),
                Err(fault) => {
                    failed = Some(fault);
                    break;
                }
            }
        }
        let copies = Self {
            cells,
            layers: network.n_layers(),
            balance,
        };
        match failed {
            None => Ok(copies),
            Some(fault) => {
                copies.segments().for_each(|segment| driver.unload(segment));
                Err(fault)
            }
        }
    }

    /// Bytes of all copies, for memory budgets.
    pub fn bytes(network: &Network, room: &KvRoom, threads: usize) -> u64 {
        let there = spaces(network, room, threads).flatten();
        there.map(|space| space.bytes()).sum()
    }

    /// Where the copy of a core's keys and values of a layer is.
    pub(super) fn segment(&self, rank: usize, layer: usize) -> Option<SegmentId> {
        let cell = self.cells.get(rank * self.layers + layer)?.as_ref()?;
        cell.segment.get()
    }

    /// All that are there.
    pub(super) fn segments(&self) -> impl Iterator<Item = SegmentId> {
        self.cells
            .iter()
            .flatten()
            .filter_map(|cell| cell.segment.get())
    }

    /// Whether the device has them.
    pub fn is_there(&self) -> bool {
        self.segments().next().is_some()
    }

    /// How many there may be, each with a number.
    pub(super) fn len(&self) -> usize {
        self.cells.len()
    }

    /// One that is to be given back, if not all are to be `kept`.
    pub(super) fn next_to_unload(&self, kept: bool) -> Option<(usize, SegmentId)> {
        let there = |(i, cell): (usize, &Option<Cell>)| Some((i, cell.as_ref()?.segment.get()?));
        self.cells
            .iter()
            .enumerate()
            .filter(|_| !kept)
            .find_map(there)
    }

    /// One that is to be there and is not.
    pub(super) fn next_to_reserve(&self, kept: bool) -> Option<(usize, u64)> {
        let missing = |(i, cell): (usize, &Option<Cell>)| {
            let cell = cell.as_ref()?;
            cell.segment.get().is_none().then_some((i, cell.bytes))
        };
        self.cells
            .iter()
            .enumerate()
            .filter(|_| kept)
            .find_map(missing)
    }

    /// From now on, the one with this number is here, or not at all.
    pub(super) fn moved(&self, number: usize, segment: Option<SegmentId>) {
        let cell = self.cells.get(number).and_then(Option::as_ref);
        cell.into_iter().for_each(|cell| cell.segment.set(segment));
    }
}

/// Of all cores, of each by layer.
fn spaces(
    network: &Network,
    room: &KvRoom,
    threads: usize,
) -> impl Iterator<Item = Option<KvSpace>> {
    let of_core = move |rank| heads(network, room, (rank, threads)).into_iter();
    let all = (0..threads).flat_map(of_core);
    all.map(|heads| heads.map(|heads| space(&heads)))
}

/// The heads for which a device can attend, of core `rank` of `threads`, by layer.
pub(super) fn heads(
    network: &Network,
    room: &KvRoom,
    core: (usize, usize),
) -> Vec<Option<DeviceHeads>> {
    let layers = 0..network.n_layers();
    let of_layer = |layer| DeviceHeads::of(network, room, layer, core);
    let is_possible = |heads: &DeviceHeads| space(heads).is_possible();
    layers
        .map(|layer| of_layer(layer).filter(is_possible))
        .collect()
}

/// Room for the keys and values of a core's heads.
pub(super) fn space(heads: &DeviceHeads) -> KvSpace {
    KvSpace {
        heads: heads.kv_heads,
        blocks: heads.blocks,
        head_dim: heads.head_dim,
        value_dim: heads.value_dim,
    }
}
