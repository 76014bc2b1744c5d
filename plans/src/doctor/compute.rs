//! Findings about cores and instructions.

use super::{Doctor, Finding};
use crate::kernel_files::{KernelFiles, format_cpu_list};
use crate::topology::{CoreClass, Topology};

const AREA: &str = "cores";

/// Adds the findings and returns the CPUs that would compute; none if they cannot be determined.
pub(super) fn examine(
    doctor: &mut Doctor,
    kernel: &KernelFiles,
    threads: Option<usize>,
) -> Vec<usize> {
    let cores = match Topology::read_kernel(kernel) {
        Ok(topology) => {
            let cores = describe(&mut doctor.findings, &topology, threads);
            doctor.topology = Some(topology);
            cores
        }
        Err(error) => {
            doctor
                .findings
                .push(Finding::bad(AREA, "topology", error.to_string()));
            Vec::new()
        }
    };
    let isa = &doctor.isa;
    doctor.findings.push(match isa.int8_dot() {
        Some(name) => Finding::good(AREA, "int8 dot product", name),
        None => Finding::warn(
            AREA,
            "int8 dot product",
            "none: quantised prefill takes several instructions per product on this CPU",
        ),
    });
    let features = format!("{}: {}", isa.arch, isa.features.join(" "));
    doctor
        .findings
        .push(Finding::good(AREA, "instructions", features));
    cores
}

fn describe(
    findings: &mut Vec<Finding>,
    topology: &Topology,
    threads: Option<usize>,
) -> Vec<usize> {
    let allowed: Vec<usize> = topology.allowed().map(|cpu| cpu.id).collect();
    let value = format!(
        "{} of {} online ({})",
        allowed.len(),
        topology.cpus.len(),
        format_cpu_list(&allowed)
    );
    findings.push(Finding::good(AREA, "allowed CPUs", value));
    findings.push(Finding::good(AREA, "classes", classes(topology)));
    findings.push(match topology.cpu_quota {
        None => Finding::good(AREA, "CPU quota", "none"),
        Some(quota) => Finding::warn(
            AREA,
            "CPU quota",
            format!("{quota:.2} CPUs' worth of time per period"),
        )
        .remedy(
            "all threads stop together when it is used up; raise it (docker --cpus, CPUQuota=)",
        ),
    });
    match topology.compute_cores(threads) {
        Ok(mut cores) => {
            let strongest_first = cores.clone();
            cores.sort_unstable();
            let mut value = format!("{} (CPUs {})", cores.len(), format_cpu_list(&cores));
            if topology.has_smt() && threads.is_none() {
                value.push_str(", one hardware thread per core");
            }
            findings.push(Finding::good(AREA, "compute threads", value));
            strongest_first
        }
        Err(error) => {
            findings.push(Finding::bad(AREA, "compute threads", error.to_string()));
            Vec::new()
        }
    }
}

/// Such as `1 big (7), 5 mid (2-6), 2 little (0-1)`.
fn classes(topology: &Topology) -> String {
    let of = |class: CoreClass, name: &str| {
        let cpus = topology.cpus.iter().filter(|cpu| cpu.class == class);
        let ids: Vec<usize> = cpus.map(|cpu| cpu.id).collect();
        (!ids.is_empty()).then(|| format!("{} {name} ({})", ids.len(), format_cpu_list(&ids)))
    };
    let parts = [
        of(CoreClass::Big, "big"),
        of(CoreClass::Mid, "mid"),
        of(CoreClass::Little, "little"),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}
