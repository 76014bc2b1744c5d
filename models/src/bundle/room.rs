//! Free space on a device for the file that is about to be written there.

use std::io::{Error, ErrorKind};
use std::path::Path;

use super::options::PackOptions;
use crate::error::{ModelError, Result};
use crate::files::folder_of;
use crate::network::Content;
use crate::source::TensorSource;
use crate::tensor::{LayerTensor, TensorId};

/// What the user can do about it.
const REMEDY: &str = "free some space or choose another folder with FOREBAY_CACHE or -o";

/// Minimum bytes of weights of a packed `source`: without padding, checksums and metadata.
pub(super) fn least_bytes(source: &dyn TensorSource, options: &PackOptions) -> u64 {
    use LayerTensor as T;
    let network = source.network();
    let of = |id, target_cols: Option<usize>| {
        let Some(m) = source.meta(id) else {
            return 0;
        };
        let target = options.target(id, m.block, target_cols.unwrap_or(m.cols));
        (m.rows * m.cols / target.block_len() * target.block_bytes()) as u64
    };
    let neurons = |l, content| {
        let (rows, down) = network.neuron_matrices(content);
        let rows = rows.iter().map(|&t| of(TensorId::Layer(l, t), None));
        if down == T::ExpertDown {
            return rows.sum::<u64>() + of(TensorId::Layer(l, down), None);
        }
        // Down is written by columns if it is plain, which decides how it may be quantised.
        let down = match of(TensorId::Layer(l, T::DownT), None) {
            0 => of(TensorId::Layer(l, T::Down), Some(network.d_model)),
            transposed => transposed,
        };
        rows.sum::<u64>() + down
    };
    let bytes = |content: Content| match content {
        // Their tensors count once.
        Content::HotNeurons(_) => 0,
        Content::Neurons(layer) | Content::Experts(layer) => neurons(layer, content),
        Content::Rows(id) | Content::Table(id) => of(id, None),
    };
    let contents = network.contents(source.has_predictors());
    contents.into_iter().map(bytes).sum()
}

/// Refuses to begin a file of `least` bytes if the device does not have them, before gigabytes are written.
pub(super) fn check(target: &Path, least: u64) -> Result<()> {
    let Ok(device) = rustix::fs::statvfs(folder_of(target)) else {
        // A problem with the folder is reported when the file is created in it.
        return Ok(());
    };
    // Some devices have no size. Space reserved for the superuser counts as free: other users get an error later.
    if device.f_blocks == 0 || device.f_bfree.saturating_mul(device.f_frsize) >= least {
        return Ok(());
    }
    let free = device.f_bavail.saturating_mul(device.f_frsize);
    let problem = format!(
        "it takes at least {}, and {} are free",
        mib(least),
        mib(free)
    );
    let action = format!("write the packed model ({REMEDY})");
    let full = Error::new(ErrorKind::StorageFull, problem);
    Err(ModelError::io(target, action, full))
}

/// What failed after `written` bytes of at least `least`, and what helps.
pub(super) fn action(what: &str, kind: ErrorKind, (written, least): (u64, u64)) -> String {
    let (written, least) = (mib(written), mib(least));
    match kind {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
            format!("{what}, which takes at least {least}; there was room for {written} ({REMEDY})")
        }
        ErrorKind::FileTooLarge => format!(
            "{what}, which takes at least {least}; it ends at {written} (raise the limit of file sizes, `ulimit -f`, \
             or choose a file system for larger files with FOREBAY_CACHE or -o)"
        ),
        _ => what.to_string(),
    }
}

/// A size in MiB, as text.
fn mib(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_without_a_size_is_not_full() {
        check(Path::new("/proc/model.fbay"), u64::MAX).expect("nobody knows");
        check(Path::new("/no/such/folder/model.fbay"), u64::MAX).expect("said elsewhere");
        let message = check(&std::env::temp_dir().join("model.fbay"), u64::MAX);
        let message = message.expect_err("no device has that").to_string();
        assert!(message.contains("are free"), "{message}");
    }
}
