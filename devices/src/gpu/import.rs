//! The CPU's memory as a device's buffers, without a copy (`VK_EXT_external_memory_host`). wgpu does not know this, so
//! the calls are Vulkan's own.
#![allow(unsafe_code)]

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use ash::ext::external_memory_host as extension;
use ash::vk;
use forebay_queues::slab::{PAGE, Slot};
use wgpu::hal::api::Vulkan;
use wgpu::hal::vulkan::Buffer;

use crate::fault::DeviceFault;

/// Memory of this process, as Vulkan names it.
const HOST: vk::ExternalMemoryHandleTypeFlags =
    vk::ExternalMemoryHandleTypeFlags::HOST_ALLOCATION_EXT;

/// Whether a device's driver imports memory.
pub(super) fn is_known(adapter: &wgpu::Adapter) -> bool {
    // SAFETY: the handle is only asked what the device can do.
    let hal = unsafe { adapter.as_hal::<Vulkan>() };
    hal.is_some_and(|hal| {
        let can = hal.physical_device_capabilities();
        can.supports_extension(extension::NAME)
    })
}

/// Opens a device whose driver [imports memory](is_known); `None` if it refuses to open it so.
pub(super) fn open(
    adapter: &wgpu::Adapter,
    wanted: &wgpu::DeviceDescriptor<'_>,
) -> Option<(wgpu::Device, wgpu::Queue)> {
    // SAFETY: the handle is only asked to open the device.
    let hal = unsafe { adapter.as_hal::<Vulkan>() }?;
    // SAFETY: the device supports the extension that is added, and nothing else is changed.
    let opened = unsafe {
        hal.open_with_callback(
            wanted.required_features,
            &wanted.required_limits,
            &wanted.memory_hints,
            Some(Box::new(|args| args.extensions.push(extension::NAME))),
        )
    };
    // SAFETY: it was opened by this adapter, with the features and limits that are wanted.
    unsafe { adapter.create_device_from_hal(opened.ok()?, wanted) }.ok()
}

/// Imports memory on one device.
pub(super) struct Importer {
    functions: extension::Device,
    types: vk::PhysicalDeviceMemoryProperties,
}

impl fmt::Debug for Importer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Importer").finish_non_exhaustive()
    }
}

impl Importer {
    /// For a device that [`open`] has opened; `None` if its imports do not begin at every page.
    pub(super) fn new(device: &wgpu::Device) -> Option<Self> {
        // SAFETY: the handle is only asked for properties.
        let hal = unsafe { device.as_hal::<Vulkan>() }?;
        let instance = hal.shared_instance().raw_instance();
        let mut host = vk::PhysicalDeviceExternalMemoryHostPropertiesEXT::default();
        let mut properties = vk::PhysicalDeviceProperties2::default().push_next(&mut host);
        let physical = hal.raw_physical_device();
        // SAFETY: the device belongs to this instance, and has the extension whose structure is chained.
        let types = unsafe {
            instance.get_physical_device_properties2(physical, &mut properties);
            instance.get_physical_device_memory_properties(physical)
        };
        let fits = host.min_imported_host_pointer_alignment <= PAGE as u64;
        fits.then(|| Self {
            functions: extension::Device::new(instance, hal.raw_device()),
            types,
        })
    }

    /// A buffer whose bytes are those of `range` in `memory`, whole pages. The caller keeps `memory` until the device
    /// has given up the buffer.
    pub(super) fn import(
        &self,
        device: &wgpu::Device,
        memory: &Arc<Slot>,
        range: Range<usize>,
    ) -> Result<wgpu::Buffer, DeviceFault> {
        let refused = |reason: String| {
            DeviceFault::BadJob(format!("the device cannot import memory: {reason}"))
        };
        let fits = range.start.is_multiple_of(PAGE) && range.len().is_multiple_of(PAGE);
        let Some(bytes) = memory.get(range).filter(|b| fits && !b.is_empty()) else {
            return Err(refused("it is not made of whole pages".to_owned()));
        };
        let size = bytes.len() as u64;
        let raw = self.raw(device, bytes);
        let raw = raw.map_err(|error| refused(error.to_string()))?;
        let described = wgpu::BufferDescriptor {
            label: None,
            size,
            usage: wgpu::BufferUsages::STORAGE,
            mapped_at_creation: false,
        };
        // SAFETY: the buffer was made on this device with that size and usage, and its bytes are initialised.
        Ok(unsafe { device.create_buffer_from_hal::<Vulkan>(raw, &described) })
    }

    fn raw(&self, device: &wgpu::Device, bytes: &[u8]) -> Result<Buffer, vk::Result> {
        // SAFETY: the handle lives only in this function, and what is made with it is given to wgpu or destroyed here.
        let hal = unsafe { device.as_hal::<Vulkan>() };
        let hal = hal.ok_or(vk::Result::ERROR_DEVICE_LOST)?;
        let raw = hal.raw_device();
        let size = bytes.len() as u64;
        let mut external = vk::ExternalMemoryBufferCreateInfo::default().handle_types(HOST);
        let info = vk::BufferCreateInfo::default()
            .size(size)
            .usage(vk::BufferUsageFlags::STORAGE_BUFFER)
            .sharing_mode(vk::SharingMode::EXCLUSIVE)
            .push_next(&mut external);
        // SAFETY: the device is open; all structures live until the call returns.
        let buffer = unsafe { raw.create_buffer(&info, None) }?;
        match self.bind(raw, buffer, bytes) {
            // SAFETY: buffer and memory were made here and nobody else has them; all of the memory is the buffer's.
            // Shaders only read it, and the CPU never writes to memory that is imported.
            Ok(memory) => Ok(unsafe { Buffer::from_raw_managed(buffer, memory, 0, size) }),
            Err(error) => {
                // SAFETY: it was made above, and nothing uses it.
                unsafe { raw.destroy_buffer(buffer, None) };
                Err(error)
            }
        }
    }

    /// Imports `bytes` and makes them the memory of `buffer`.
    fn bind(
        &self,
        device: &ash::Device,
        buffer: vk::Buffer,
        bytes: &[u8],
    ) -> Result<vk::DeviceMemory, vk::Result> {
        let pointer = bytes.as_ptr().cast_mut().cast();
        let mut host = vk::MemoryHostPointerPropertiesEXT::default();
        let ask = self.functions.fp().get_memory_host_pointer_properties_ext;
        // SAFETY: the function is this device's; the pointer is that of mapped memory, and aligned to pages.
        let needs = unsafe {
            ask(device.handle(), HOST, pointer, &mut host).result()?;
            device.get_buffer_memory_requirements(buffer)
        };
        let size = bytes.len() as u64;
        let kind = self.kind(host.memory_type_bits & needs.memory_type_bits);
        let kind = kind.filter(|_| needs.size <= size);
        let kind = kind.ok_or(vk::Result::ERROR_INVALID_EXTERNAL_HANDLE)?;
        let mut import = vk::ImportMemoryHostPointerInfoEXT::default()
            .handle_type(HOST)
            .host_pointer(pointer);
        let info = vk::MemoryAllocateInfo::default()
            .allocation_size(size)
            .memory_type_index(kind)
            .push_next(&mut import);
        // SAFETY: pointer and size are whole pages of memory that stays mapped while the device may use it, of a type
        // that the driver allows for both the pointer and the buffer.
        let memory = unsafe { device.allocate_memory(&info, None) }?;
        // SAFETY: buffer and memory are new, and the buffer fits.
        match unsafe { device.bind_buffer_memory(buffer, memory, 0) } {
            Ok(()) => Ok(memory),
            Err(error) => {
                // SAFETY: nothing is bound to it.
                unsafe { device.free_memory(memory, None) };
                Err(error)
            }
        }
    }

    /// The best type of memory of those `allowed`: what the CPU writes must be seen without being asked for.
    fn kind(&self, allowed: u32) -> Option<u32> {
        let coherent = vk::MemoryPropertyFlags::HOST_COHERENT;
        let cached = coherent | vk::MemoryPropertyFlags::HOST_CACHED;
        let types = || (0..).zip(self.types.memory_types_as_slice());
        let having = |flags: vk::MemoryPropertyFlags| {
            types()
                .find(|(i, kind)| allowed >> i & 1 == 1 && kind.property_flags.contains(flags))
                .map(|(i, _)| i)
        };
        having(cached).or_else(|| having(coherent))
    }
}
