//! The Pred actor: at the start of an FFN block all of the layer's clusters are here; each goes on to
//! GC if its Gate rows are in memory, to GIO if not.

use super::context::{CoreContext, Flight};
use super::gc::GcActor;
use super::gio::GioActor;
use super::program::{Item, Source};
use forebay_stages::live_mask::LiveMask;

/// Clusters looked at per turn, so that the first ones are computed while others are still here.
const PER_TURN: usize = 8;

#[derive(Debug, Default)]
pub(super) struct PredActor {
    next: usize,
}

impl PredActor {
    /// Takes in the clusters of a new layer.
    pub fn begin(&mut self, cx: &mut CoreContext, items: &[Item]) {
        self.next = 0;
        cx.gate_start.clear();
        let mut start = 0;
        for item in items {
            cx.gate_start.push(start);
            start += cx.shared.entry(item.cluster).count as usize;
        }
    }

    /// Sends a few clusters on; resident ones are computed first, while reads are under way.
    pub fn turn(
        &mut self,
        cx: &mut CoreContext,
        items: &[Item],
        gio: &mut GioActor,
        gc: &mut GcActor,
    ) -> bool {
        let from = self.next;
        for item in items.iter().skip(from).take(PER_TURN) {
            let count = cx.shared.entry(item.cluster).count as usize;
            let live = LiveMask::first(count);
            let flight = Flight {
                item: *item,
                number: self.next,
                count,
                live,
                buffer: None,
                flow: 0,
            };
            match item.source {
                Source::Streamed { .. } => gio.wait_for(flight),
                Source::Pinned | Source::Neurons { .. } => gc.push(flight),
            }
            self.next += 1;
        }
        self.next > from
    }
}
