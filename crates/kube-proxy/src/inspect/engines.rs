//! Engines that show what is in this machine's kernel, one for each family.

use std::sync::mpsc;

use anyhow::bail;
use ferry_api::object::Family;
use ferry_plane::{CommitError, Delta, Inspector};

use super::comparison::Shown;
use super::desired::{Desired, InspectedNode};
use crate::planes::{InheritedSockets, Opening, Plane};
use crate::platform;
use crate::threads::Threads;

/// Capacity of the channel for the engines' reports, which no thread reads.
const INPUTS: usize = 64;

/// Opens the engines of a mode for these families, those that this machine supports, and lets each show something beside the desired
/// state of its family. Nothing is changed, and no thread started.
///
/// # Errors
/// If the mode's objects can't be read from outside, or it can't be used here for any family.
pub(super) fn each_family<T>(
    plane: &Plane,
    families: &[Family],
    node: &InspectedNode<'_>,
    desired: &Desired,
    mut show: impl FnMut(Family, &mut dyn Inspector, Delta) -> Result<T, CommitError>,
) -> anyhow::Result<Shown<T>> {
    let supported: Vec<Family> = families.iter().copied().filter(|family| platform::supports(*family)).collect();
    if supported.is_empty() {
        bail!("this machine has no {}", families.iter().map(Family::to_string).collect::<Vec<_>>().join(" and no "));
    }
    let (inputs, _unread) = mpsc::sync_channel(INPUTS);
    let (threads, sockets) = (Threads::rehearsal(), InheritedSockets::default());
    let InspectedNode { config, settings, .. } = node;
    let opening =
        Opening { families: &supported, config, settings, threads: &threads, sockets: &sockets, inputs: &inputs };
    let mut shown = Vec::new();
    for (family, opened) in plane.inspectors(&opening)? {
        let one = opened.and_then(|mut engine| show(family, &mut *engine, desired.of_family(family)));
        shown.push((family, one.map_err(|error| error.to_string())));
    }
    if let [(_, Err(first)), rest @ ..] = &shown[..]
        && rest.iter().all(|(_, one)| one.is_err())
    {
        bail!("mode {} can't be looked at on this machine: {first}", plane.mode);
    }
    Ok(shown)
}
