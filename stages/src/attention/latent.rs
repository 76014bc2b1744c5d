//! Keys and queries of latent attention.

use forebay_models::network::{Attention, Latent};

use super::rotation::Rotation;
use super::share::Share;
use crate::kernels::KernelTable;

/// Makes the key of a token, its number in the step beside the rotation, and completes the queries of this core's
/// heads: the latent is normalised, what follows it is rotated, and a head's rotated query follows that for latents.
///
/// `row` is the token's, `[in_dim]`; `spare` has room for a latent.
pub(super) fn prepare(
    kernels: &KernelTable,
    (a, latent): (&Attention, &Latent),
    share: &Share,
    rotation: Option<(&Rotation, usize)>,
    norm: &[f32], // [rank]
    (row, spare): (&mut [f32], &mut [f32]),
) {
    let rotate = |part: &mut [f32]| {
        if let Some((rotation, t)) = rotation {
            rotation.turn(kernels, t, part);
        }
    };
    let (projected, queries) = row.split_at_mut(a.query_column());
    let key = &mut projected[a.k_column()..][..a.head_dim];
    let (latents, rotated) = key.split_at_mut(latent.rank);
    let before = &mut spare[..latent.rank];
    before.copy_from_slice(latents);
    kernels.rmsnorm(before, norm, latent.eps, latents);
    rotate(rotated);
    for head in share.q_heads.clone() {
        let own = a.q_column() + head * a.query_dim();
        let from = &projected[own + latent.plain_dim..own + a.query_dim()];
        let query = &mut queries[head * a.head_dim..][..a.head_dim];
        let to = &mut query[latent.rank..];
        to.copy_from_slice(from);
        rotate(to);
    }
}
