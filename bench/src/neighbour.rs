//! Another user of nf_tables in the same network namespace.

use ferry_api::object::Family;
use ferry_kernel::nft::{NftBatch, NftSocket};

/// Commits to tables of its own.
pub(crate) struct Neighbour {
    socket: NftSocket,
    count: u32,
}

impl Neighbour {
    /// Opens its socket, in the network namespace of this thread.
    pub(crate) fn open() -> std::io::Result<Self> {
        Ok(Self { socket: NftSocket::open()?, count: 0 })
    }

    /// Creates and deletes a table in one transaction.
    pub(crate) fn commit(&mut self) -> anyhow::Result<()> {
        self.count += 1;
        let table = format!("neighbour-{}", self.count % 2);
        let mut batch = NftBatch::new(Family::V4, &table);
        batch.add_table(None);
        batch.delete_table();
        self.socket.commit(batch).map(|_| ()).map_err(|failure| anyhow::anyhow!("{failure}"))
    }
}
