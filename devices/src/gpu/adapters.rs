//! Which devices there are.

use std::sync::LazyLock;

use crate::fault::DeviceFault;

use super::import;
use super::ready::ready;

/// What a device is, as far as memory is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceKind {
    /// It shares the CPU's memory.
    Unified,
    /// It has its own memory.
    Discrete,
    /// It is part of a virtual machine's host.
    Virtual,
    /// It is a program on the CPU, for tests. It is never chosen unasked.
    Software,
    /// The driver does not say.
    Unknown,
}

impl DeviceKind {
    /// Name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Unified => "unified memory",
            Self::Discrete => "discrete",
            Self::Virtual => "virtual",
            Self::Software => "software",
            Self::Unknown => "unknown",
        }
    }
}

/// What a driver allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceLimits {
    /// Largest segment of weights, bytes.
    pub segment_bytes: u64,
    /// Memory that the lanes of a workgroup share, bytes.
    pub workgroup_bytes: u32,
    /// Lanes of a workgroup.
    pub workgroup_lanes: u32,
    /// Workgroups in one dimension of a dispatch.
    pub workgroups: u32,
    /// Lanes of a subgroup; nothing here depends on it.
    pub subgroup_lanes: [u32; 2],
}

/// A device that is there.
#[derive(Clone, Debug)]
pub struct Adapter {
    pub(super) adapter: wgpu::Adapter,
    info: wgpu::AdapterInfo,
}

impl Adapter {
    /// Its name, such as `AMD Radeon 780M`.
    pub fn name(&self) -> &str {
        &self.info.name
    }

    /// Its driver and version.
    pub fn driver(&self) -> String {
        format!("{} {}", self.info.driver, self.info.driver_info)
            .trim()
            .to_owned()
    }

    /// How it is connected.
    pub fn kind(&self) -> DeviceKind {
        match self.info.device_type {
            wgpu::DeviceType::IntegratedGpu => DeviceKind::Unified,
            wgpu::DeviceType::DiscreteGpu => DeviceKind::Discrete,
            wgpu::DeviceType::VirtualGpu => DeviceKind::Virtual,
            wgpu::DeviceType::Cpu => DeviceKind::Software,
            wgpu::DeviceType::Other => DeviceKind::Unknown,
        }
    }

    /// Whether it can compute with weights where the CPU has them. With memory of its own it would, but slowly.
    pub fn imports(&self) -> bool {
        self.kind() != DeviceKind::Discrete && import::is_known(&self.adapter)
    }

    /// What its driver allows.
    pub fn limits(&self) -> DeviceLimits {
        let limits = self.adapter.limits();
        DeviceLimits {
            segment_bytes: limits
                .max_buffer_size
                .min(limits.max_storage_buffer_binding_size),
            workgroup_bytes: limits.max_compute_workgroup_storage_size,
            workgroup_lanes: limits.max_compute_invocations_per_workgroup,
            workgroups: limits.max_compute_workgroups_per_dimension,
            subgroup_lanes: [self.info.subgroup_min_size, self.info.subgroup_max_size],
        }
    }
}

/// The process's connection to the drivers, which stays open. The last one to close would unload them, but NVIDIA's
/// driver leaves every thread that has used it with something to do at the thread's end: that crashed with the driver
/// gone.
static INSTANCE: LazyLock<wgpu::Instance> = LazyLock::new(|| {
    wgpu::Instance::new(wgpu::InstanceDescriptor {
        backends: wgpu::Backends::VULKAN,
        // No debugging layers, which builds with debug assertions would ask for.
        flags: wgpu::InstanceFlags::empty(),
        ..wgpu::InstanceDescriptor::new_without_display_handle()
    })
});

/// All Vulkan devices, in the driver's order; none without a Vulkan driver.
pub fn adapters() -> Vec<Adapter> {
    let instance = &*INSTANCE;
    ready(instance.enumerate_adapters(wgpu::Backends::VULKAN))
        .into_iter()
        .map(|adapter| Adapter {
            info: adapter.get_info(),
            adapter,
        })
        .collect()
}

/// The device with number `index` of `adapters`, or the first one that is not software.
///
/// # Errors
/// There is none.
pub fn choose(adapters: Vec<Adapter>, index: Option<usize>) -> Result<Adapter, DeviceFault> {
    let found: Vec<_> = adapters.iter().map(Adapter::name).collect();
    let found = match found.is_empty() {
        true => "there is no Vulkan device".to_owned(),
        false => format!("there is {}", found.join(", ")),
    };
    let fits = |(i, adapter): &(usize, Adapter)| match index {
        Some(index) => *i == index,
        None => adapter.kind() != DeviceKind::Software,
    };
    let chosen = adapters.into_iter().enumerate().find(fits);
    chosen
        .map(|(_, adapter)| adapter)
        .ok_or_else(|| DeviceFault::NoAdapter {
            wanted: index.map_or_else(|| "gpu".to_owned(), |index| format!("gpu:{index}")),
            found,
        })
}
