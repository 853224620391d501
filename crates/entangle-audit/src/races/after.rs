//! Which calls come after which by data, on whichever device of the program.

use crate::audit::Audit;
use crate::graph::{Block, Device, Node, Part, Reached, reached, reached_everywhere};
use crate::objects::is_python;

/// Which of a block of calls each node comes after, in every run.
///
/// A callback into Python that runs on one device alone is there for the devices that share its process. Its result, which the other
/// devices do not have, proves something for them only where a collective brought it there.
pub(crate) struct After<'a> {
    audit: &'a Audit,
    block: Block<'a>,
    here: Reached,
    /// For the calls of the block that run on one device alone.
    alone: Option<(u64, Reached)>,
}

impl<'a> After<'a> {
    pub(crate) fn new(audit: &'a Audit, block: Block<'a>, last: Node) -> Self {
        let here = reached(&audit.dependence, block, last, false);
        let alone = block.bits_of(|call| audit.device(call).is_some());
        let alone = (alone != 0).then(|| (alone, reached_everywhere(&audit.dependence, block, last, &here, alone)));
        Self { audit, block, here, alone }
    }

    /// The calls of the block that come before this one, whose node this is.
    pub(crate) fn at(&self, call: u32, node: Node) -> u64 {
        let here = self.here.at(node);
        let Some((alone, everywhere)) = &self.alone else { return here };
        let device = self.audit.device(call);
        let together =
            if device.is_none() { 0 } else { self.block.bits_of(|first| self.audit.device(first) == device) };
        here & !(alone & !together) | everywhere.at(node) & alone
    }
}

impl Audit {
    /// The device that alone runs a call, if it is a callback into Python.
    pub(crate) fn device(&self, call: u32) -> Option<Device> {
        if !self.dependence.has_devices {
            return None;
        }
        let site = &self.dependence.calls[call as usize];
        if !is_python(&self.module.instructions[site.instruction].target) {
            return None;
        }
        let mut device = None;
        let mut context = self.dependence.contexts[site.context as usize];
        while context.part != Part::Entry {
            if let Part::Branch { site, branch } = context.part {
                let of_branch = self.dependence.branches[site as usize].device;
                device = of_branch.map(|of| Device { branch, ..of }).or(device);
            }
            context = self.dependence.contexts[context.parent as usize];
        }
        device
    }

    /// The calls of the block that stand in another branch of a conditional around `call`, so that no run has both.
    pub(super) fn exclusive(&self, block: Block<'_>, call: usize) -> u64 {
        let mut exclusive = 0;
        let mut context = self.dependence.contexts[self.dependence.calls[call].context as usize];
        while context.part != Part::Entry {
            if let Part::Branch { site, branch } = context.part {
                let site = &self.dependence.branches[site as usize];
                let (start, end) = (site.branches[0].start, site.branches[site.branches.len() - 1].end);
                let mut others = block.mask(&(start..end)) & !block.mask(&site.branches[branch as usize]);
                if site.device.is_some() {
                    // Two devices take two branches, and both call into one process.
                    others &= !block.bits_of(|call| self.device(call).is_some());
                }
                exclusive |= others;
            }
            context = self.dependence.contexts[context.parent as usize];
        }
        exclusive
    }
}
