//! Opening a Vulkan device for an engine.

use forebay_devices::DeviceFault;
use forebay_devices::gpu::{Adapter, GpuDriver, GpuOptions, UPLOAD_BYTES, adapters, choose};
use forebay_models::bundle::Bundle;
use forebay_plans::cache_dir;
use forebay_plans::placement::PlacementMachine;
use forebay_stages::kernels::KernelTable;

use super::device::formats;
use super::device_attention::fastest_attention;
use super::device_choice::{DeviceChoice, DevicePlacing, OpenDevice};
use super::settings::EngineBuilder;
use crate::devices::{known_figures, new_figures};
use crate::error::Error;
use crate::memory::DeviceRequest;

/// Pieces of weights that the driver keeps while they are copied.
const PIECES: u64 = 2;

impl EngineBuilder {
    /// Refuses a device that was asked for and is not there.
    pub(super) fn check_device(&self) -> Result<(), Error> {
        match (&self.own_device, self.device) {
            (None, DeviceChoice::Gpu(index)) => choose(adapters(), index)
                .map(drop)
                .map_err(|fault| Error::Device { fault }),
            _ => Ok(()),
        }
    }

    /// The device that `choice` names; `None` if any would do and there is none.
    pub(super) fn open_gpu(
        &self,
        choice: DeviceChoice,
        bundle: &Bundle,
        kernels: &KernelTable,
    ) -> Result<Option<OpenDevice>, DeviceFault> {
        let index = match choice {
            DeviceChoice::Gpu(index) => index,
            DeviceChoice::Auto | DeviceChoice::Cpu => None,
        };
        let adapter = match choose(adapters(), index) {
            Err(_) if choice == DeviceChoice::Auto => return Ok(None),
            chosen => chosen?,
        };
        let placing = match &self.device_placing {
            Some(placing) => placing.clone(),
            None => {
                let machine = self.figures(&adapter);
                let machine = machine.map_err(|reason| DeviceFault::NotOpened {
                    adapter: adapter.name().to_owned(),
                    reason,
                })?;
                DevicePlacing::Fastest(Box::new(machine))
            }
        };
        let network = &bundle.meta.network;
        // Its shaders take time to compile.
        let may_attend = match &placing {
            DevicePlacing::Part(part) => *part > 0.0,
            DevicePlacing::Fastest(machine) => {
                fastest_attention(machine, network, network.context_length).is_some()
            }
        };
        let mut heads = self.heads_on_device(bundle);
        heads.retain(|_| may_attend);
        let options = GpuOptions {
            formats: formats(bundle),
            heads,
            ..GpuOptions::default()
        };
        let driver = GpuDriver::open(&adapter, &options, kernels)?;
        Ok(Some(OpenDevice {
            attends: driver.no_attention().cloned().map_or(Ok(()), Err),
            driver: Box::new(driver),
            placing,
            request: DeviceRequest {
                staging: PIECES * UPLOAD_BYTES as u64,
                piece: adapter.limits().segment_bytes,
                ..DeviceRequest::default()
            },
            why_uploads: None,
        }))
    }

    /// The machine's figures with a device, measured now if they are not known and a budget need not be kept meanwhile.
    fn figures(&self, adapter: &Adapter) -> Result<PlacementMachine, String> {
        let folder = cache_dir::prepare(self.cache.as_deref()).map_err(|e| e.to_string())?;
        match (known_figures(adapter, &folder), self.memory) {
            (Some(machine), _) => Ok(machine),
            (None, None) => new_figures(adapter, &folder),
            (None, Some(_)) => Err(
                "its speed is not known, and measuring it takes more than the given memory: run `forebay doctor` once"
                    .to_owned(),
            ),
        }
    }
}
