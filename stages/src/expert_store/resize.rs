//! Using less memory for a while: cells at the end go out of use, and their pages go back to the system.

use super::{Cell, ExpertStore};

impl ExpertStore {
    /// Keeps `cells` cells in use, at most as many as there were at the start. Clusters in cells that go out of use are
    /// forgotten; how often they were wanted is not.
    ///
    /// False, and nothing is changed, while a cluster that would be forgotten is read or used, or flights wait for
    /// cells.
    pub fn resize(&mut self, cells: usize) -> bool {
        let cells = cells.min(self.cells.len());
        if cells == self.used {
            return true;
        }
        let at_rest = |cell: &Cell| matches!(cell, Cell::Here(_) | Cell::Idle);
        let changed = &self.cells[cells.min(self.used)..];
        if !self.blocked.is_empty() || !changed.iter().all(at_rest) {
            return false;
        }
        self.bring_back();
        for cell in cells..self.used {
            self.cache.withdraw(cell);
        }
        for cell in self.used..cells {
            self.cache.release(cell);
        }
        self.used = cells;
        for cell in &mut self.cells[cells..] {
            let Cell::Here(slot) = std::mem::replace(cell, Cell::Idle) else {
                continue;
            };
            match &mut self.idle {
                Some(idle) => assert!(idle.join(slot).is_ok(), "cells follow each other"),
                None => self.idle = Some(slot),
            }
        }
        if let Some(idle) = &mut self.idle {
            // Memory that the system does not take stays with the process, but the cells are out of use.
            let _ = idle.give_back();
        }
        true
    }

    /// Divides the idle memory among its cells again.
    fn bring_back(&mut self) {
        let Some(mut idle) = self.idle.take() else {
            return;
        };
        idle.take_up();
        for cell in &mut self.cells[self.used..] {
            let rest = idle.split_off(self.cell_bytes);
            *cell = Cell::Here(idle);
            match rest {
                Some(rest) => idle = rest,
                None => break,
            }
        }
    }

    /// Cells in use.
    pub fn cells_in_use(&self) -> usize {
        self.used
    }
}
