//! The work of a node's reader: pieces of journals that streams wait for.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::doorbell::Doorbell;
use crate::follow::Wanted;
use crate::lock_order::{Ranked, rank};

/// The pieces, in the order in which they were asked for.
#[derive(Default)]
pub(crate) struct PieceQueue {
    pub(crate) wanted: Ranked<VecDeque<Wanted>, { rank::PIECES }>,
    pub(crate) bell: Arc<Doorbell>,
}
