//! Choosing the driver that the system allows.

use std::path::Path;

use forebay_queues::slab::Span;

use super::driver::{Driver, DriverChoice, DriverInfo};
use super::file::ReadFile;
use super::pread::PreadDriver;
use super::refusal::{MAX_DEPTH, OpenError};
use super::uring::UringDriver;

/// Opens `path` for at most `depth` reads in flight.
///
/// `register` lists the memory that reads will fill; io_uring pins it once if the system allows that
/// much locked memory, and otherwise pins at each read.
///
/// # Errors
/// [`OpenError`]: the path is not a readable regular file, `depth` is not in `1..=`[`MAX_DEPTH`], or the requested
/// driver is not available.
pub fn open_driver(
    path: &Path,
    choice: DriverChoice,
    depth: usize,
    register: &[Span],
) -> Result<(Box<dyn Driver>, DriverInfo), OpenError> {
    let places = match u16::try_from(depth) {
        Ok(places) if (1..=MAX_DEPTH).contains(&depth) => places,
        _ => {
            let path = path.to_path_buf();
            return Err(OpenError::Depth { path, depth });
        }
    };
    let mut info = DriverInfo {
        driver: "pread",
        depth,
        file_bytes: 0,
        direct: false,
        registered_bytes: 0,
        ring_flags: "",
        notes: Vec::new(),
    };
    let file = ReadFile::open(path, &mut info.notes)?;
    (info.file_bytes, info.direct) = (file.bytes, file.direct);
    let file = match choice {
        DriverChoice::Pread => file,
        DriverChoice::Auto | DriverChoice::Uring => {
            match UringDriver::new(file, places, register) {
                Ok(driver) => {
                    driver.describe(&mut info);
                    return Ok((Box::new(driver), info));
                }
                Err((refusal, file)) if choice == DriverChoice::Auto => {
                    info.notes
                        .push(format!("{refusal}; reading with threads instead"));
                    file
                }
                Err((refusal, _)) => {
                    let path = path.to_path_buf();
                    return Err(OpenError::Uring { path, refusal });
                }
            }
        }
    };
    let driver = PreadDriver::new(file, places).map_err(|source| OpenError::Threads {
        path: path.to_path_buf(),
        source,
    })?;
    Ok((Box::new(driver), info))
}
