//! What an operator costs with a share of it on the device.

use crate::device_formats::multiplies;
use std::borrow::Cow;

use super::PARTS;
use super::choice::Choice;
use super::machine::{MachineKind, PlacementMachine, Processor, Together};
use super::operators::Operator;

/// Time in which the cores wait for each other and for the device, seconds.
const JOIN: f64 = 8e-6;

/// What a copied byte takes of the CPU's memory where a core and the device's driver copy it: each reads and writes.
const COPYING: f64 = 4.0;

/// Part of an operator, for one processor.
#[derive(Clone, Copy)]
struct Part {
    bytes: f64,
    operations: f64,
}

impl Part {
    fn seconds(&self, gb_per_second: f64, tops: f64) -> f64 {
        let read = self.bytes / (gb_per_second * 1e9);
        read.max(self.operations / (tops * 1e12))
    }

    fn on(&self, processor: &Processor) -> f64 {
        self.seconds(processor.gb_per_second, processor.tops)
    }
}

/// Bytes of the device's own memory that a choice takes.
pub(super) fn memory(machine: &PlacementMachine, operator: &Operator, choice: Choice) -> f64 {
    match machine.kind {
        MachineKind::Discrete if choice.resident && operator.streaming.is_none() => {
            match operator.attends {
                true if choice.share > 0 => operator.bytes,
                _ => operator.bytes * choice.part(),
            }
        }
        _ => 0.0,
    }
}

/// Whether the device can compute an operator at all.
pub(super) fn is_possible(machine: &PlacementMachine, operator: &Operator) -> bool {
    let mut formats = operator.formats.iter();
    machine.device.is_some() && formats.all(|&format| multiplies(format))
}

/// Seconds of an operator for a batch of tokens. An impossible choice takes forever.
pub(super) fn seconds(
    machine: &PlacementMachine,
    operator: &Operator,
    batch: usize,
    choice: Choice,
) -> f64 {
    let computed = computed(machine, operator, batch, choice);
    match &operator.streaming {
        Some(streaming) => computed.max(operator.bytes / streaming.bytes_per_second),
        None => computed,
    }
}

/// The machine with its arithmetic speed in what the operator does.
fn rates<'a>(machine: &'a PlacementMachine, operator: &Operator) -> Cow<'a, PlacementMachine> {
    let mut machine = Cow::Borrowed(machine);
    if operator.attends {
        let PlacementMachine { cpu, device, .. } = machine.to_mut();
        let device = device.iter_mut().map(|device| &mut device.processor);
        for processor in device.chain([cpu]) {
            processor.tops = processor.attention_tops;
        }
    }
    machine
}

/// The same without the time in which weights are read from flash.
fn computed(machine: &PlacementMachine, operator: &Operator, batch: usize, choice: Choice) -> f64 {
    let machine = &*rates(machine, operator);
    let f = choice.part();
    let (bytes, operations) = (operator.bytes_of(batch), operator.operations * batch as f64);
    let part = |f: f64| Part {
        bytes: f * bytes,
        operations: f * operations,
    };
    let mut cpu = part(1.0 - f);
    cpu.bytes += operator.cold_bytes_of(batch);
    cpu.operations += operator.cold_operations * batch as f64;
    if choice.share == 0 {
        return JOIN + cpu.on(&machine.cpu);
    }
    let Some(device) = machine.device.filter(|_| is_possible(machine, operator)) else {
        return f64::INFINITY;
    };
    let work = part(f);
    let link = machine.link();
    let boards = batch as f64 * (operator.input_bytes + f * operator.output_bytes) / link;
    let jobs = operator.streaming.map_or(1.0, |s| (f * s.jobs).max(1.0));
    let fixed = jobs * device.submit_us * 1e-6 + boards;
    let copied_bytes = match device.memory {
        _ if operator.streaming.is_some() => work.bytes,
        Some(_) if !choice.resident => work.bytes,
        _ => 0.0,
    };
    let copied = copied_bytes / link;
    // What is streamed is copied as it comes, between jobs; what is copied before its phase begins is not counted.
    let beside_copying = |time: f64| match operator.streaming {
        Some(_) => time + copied,
        None => time.max(copied),
    };
    let alone = beside_copying(work.on(&device.processor));
    if choice.share == PARTS && cpu.bytes == 0.0 {
        return JOIN + fixed + alone;
    }
    // What is copied is read from the CPU's memory, too.
    let copying = operator.streaming.map_or(1.0, |_| COPYING);
    let cpu_memory = (cpu.bytes + copying * copied_bytes) / (machine.cpu.gb_per_second * 1e9);
    let rates = machine.together.unwrap_or(Together {
        cpu_gb_per_second: machine.cpu.gb_per_second,
        device_gb_per_second: device.processor.gb_per_second,
    });
    let beside = cpu.seconds(rates.cpu_gb_per_second, machine.cpu.tops * machine.derate);
    let with = work.seconds(rates.device_gb_per_second, device.processor.tops);
    let with = beside_copying(with);
    let done = both((beside, cpu.on(&machine.cpu)), (with, alone), fixed);
    JOIN + done.max(cpu_memory)
}

/// When two processors are done that slow each other down while both work: for each, its time beside the other and its
/// time alone. The CPU begins at once, the device after `fixed`.
fn both((cpu, cpu_alone): (f64, f64), (device, device_alone): (f64, f64), fixed: f64) -> f64 {
    // Parts of the CPU's work that are left when the device begins, and when the device is done.
    let at_begin = (1.0 - fixed / cpu_alone).max(0.0);
    let at_end = at_begin - device / cpu;
    if at_end > 0.0 {
        return fixed + device + at_end * cpu_alone;
    }
    let together = at_begin * cpu;
    fixed + together + (1.0 - together / device) * device_alone
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slower_one_goes_on_alone() {
        // Both take 4 together: nothing is left.
        assert_eq!(both((4.0, 2.0), (4.0, 2.0), 0.0), 4.0);
        // The device is done after 2 of the CPU's 4; the other half takes 1 alone.
        assert_eq!(both((4.0, 2.0), (2.0, 1.0), 0.0), 3.0);
        assert_eq!(both((2.0, 1.0), (4.0, 2.0), 0.0), 3.0);
        // The CPU has done half when the device begins; the rest takes 2 beside it, which is half of the device's.
        assert_eq!(both((4.0, 2.0), (4.0, 2.0), 1.0), 1.0 + 2.0 + 1.0);
        // The CPU is done before the device begins.
        assert_eq!(both((4.0, 2.0), (4.0, 2.0), 3.0), 5.0);
    }
}
