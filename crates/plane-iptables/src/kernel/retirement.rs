//! The tables of both variants in the network namespace of the calling thread, for the removal of other modes' chains.

use std::io;

use ferry_api::object::Family;
use ferry_kernel::iptables::nft::Removal;
use ferry_kernel::iptables::{Backend, OutputLine, Table, Tool, ToolFailure, legacy};

use crate::of_others::{self, BothVariants};
use crate::without_tool;

/// Removes the chains of upstream's mode ipvs from the tables of both variants, with the rules that lead to them; returns their
/// number. Those of the nft variant need no tool.
///
/// # Errors
/// The system's error; of the legacy variant also the tool's.
pub fn retire_of_ipvs(family: Family) -> io::Result<usize> {
    of_others::retire_of_ipvs(&mut NamespaceTables { family, tool: None })
}

/// Removes those of upstream's mode userspace in the same way.
///
/// # Errors
/// As [`retire_of_ipvs`].
pub fn retire_of_userspace(family: Family) -> io::Result<usize> {
    of_others::retire_of_userspace(&mut NamespaceTables { family, tool: None })
}

/// The tables of one family in the calling thread's network namespace.
#[derive(Debug)]
struct NamespaceTables {
    family: Family,
    /// of the legacy variant, once it has been needed
    tool: Option<Tool>,
}

impl NamespaceTables {
    fn tool(&mut self) -> Result<&Tool, ToolFailure> {
        let tool = match self.tool.take() {
            Some(tool) => tool,
            None => Tool::find(self.family, Some(Backend::Legacy))?,
        };
        Ok(self.tool.insert(tool))
    }
}

impl BothVariants for NamespaceTables {
    fn family(&self) -> Family {
        self.family
    }

    fn remove_of_nft(&mut self, table: Table, removal: &Removal<'_>) -> io::Result<usize> {
        without_tool::remove(self.family, table, removal)
    }

    fn legacy_entries(&mut self, table: Table) -> io::Result<Option<u32>> {
        Ok(legacy::info(self.family, table)?.map(|info| info.entries))
    }

    fn save(&mut self, table: Table, each: &mut dyn FnMut(OutputLine<'_>)) -> Result<(), ToolFailure> {
        self.tool()?.save(table, each)
    }

    fn restore(&mut self, text: &str) -> Result<(), ToolFailure> {
        self.tool()?.restore_by(&mut |stdin| stdin.write(text)).map(drop)
    }
}
